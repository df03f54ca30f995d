"""One small training step of mxnet on two workers, as often as its turn says."""

import mxnet as mx
from mxnet import autograd, gluon, nd
from turns import take_turns

store = mx.kv.create("dist_sync")
model = gluon.nn.Sequential()
model.add(gluon.nn.Dense(512, activation="relu", in_units=256), gluon.nn.Dense(1, in_units=512))
model.initialize()
trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=store)
x, y = nd.random.normal(shape=(64, 256)), nd.random.normal(shape=(64, 1))
error = gluon.loss.L2Loss()


def step() -> None:
    with autograd.record():
        loss = error(model(x), y)
    loss.backward()
    trainer.step(64)
    loss.wait_to_read()


step()
take_turns(step, store.rank)
