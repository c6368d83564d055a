"""How much memory a computation holds, counted storage by storage; tensors need no data."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, then note its storages."""
        given = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._alive:
                    self._note(storage)
        return result

    def _note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()

        def gone(_: Any) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
