"""One of two processes with an engine of servers.

``python -m tests.servers_rank FOLDER URL,URL`` is a rank's part.
"""

import sys

import torch

from svr_lightning.engines.servers import ServersEngine
from tests.models import tiny_qwen3
from tests.requests import ask, finish
from tests.token_server import EOS

if __name__ == "__main__":
    folder, urls = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    model = tiny_qwen3(tie_word_embeddings=False)
    engine = ServersEngine(urls.split(","), folder)
    engine.start(model, (EOS,), 512)
    engine.sync(model, 3)
    assert engine.max_batch == 4  # its share of eight slots
    for number in range(20):
        engine.submit(ask(number))
    assert {output.version for output in finish(engine, 20).values()} == {3}
    engine.sleep()
    torch.distributed.destroy_process_group()
