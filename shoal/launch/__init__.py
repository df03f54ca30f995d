"""Launchers: how a framework learns of its peers. Adding one is a file here and a line in the catalogue."""

from typing import cast

from shoal.catalogue import Catalogue
from shoal.launch.api import Launcher, Place

LAUNCHERS = Catalogue(
    "launcher",
    {
        "pytorch": "shoal.launch.pytorch:PyTorch",
        "horovod": "shoal.launch.horovod:Horovod",
        "tensorflow": "shoal.launch.tensorflow:TensorFlow",
        "mxnet": "shoal.launch.mxnet:MXNet",
        "paddle": "shoal.launch.paddle:Paddle",
        "jax": "shoal.launch.jax:Jax",
        "xgboost": "shoal.launch.xgboost:XGBoost",
        "lightgbm": "shoal.launch.lightgbm:LightGBM",
        "sklearn": "shoal.launch.sklearn:Sklearn",
        "mpi": "shoal.launch.mpi:Mpi",
        "command": "shoal.launch.command:Command",
    },
)


def launcher(framework: str) -> Launcher:
    """The launcher of a framework; UnknownName with the nearest known one otherwise."""
    return cast(Launcher, LAUNCHERS.load(framework)())


__all__ = ["LAUNCHERS", "Launcher", "Place", "launcher"]
