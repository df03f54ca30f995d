"""One small training step of paddle on two workers, as often as its turn says."""

import paddle
import paddle.distributed as dist
from turns import take_turns

dist.init_parallel_env()
layers = paddle.nn.Sequential(paddle.nn.Linear(256, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 1))
model = paddle.DataParallel(layers)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
x, y = paddle.randn((64, 256)), paddle.randn((64, 1))


def step() -> None:
    paddle.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.clear_grad()


take_turns(step, dist.get_rank())
