"""torchrun, which keeps the port where its processes meet; torch's own only finds a free one."""

from torch.distributed import run
from torch.distributed.elastic.rendezvous import api

from tests.forked import free_port

if __name__ == "__main__":
    vars(api)["get_free_port"] = free_port
    run.main()
