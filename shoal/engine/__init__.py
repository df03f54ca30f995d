"""Engines: where gangs run. Each is a name in the catalogue and a class that keeps the bargains of `api.Engine`."""

from shoal.catalogue import Catalogue
from shoal.engine.api import Can, Engine, Gang, Liveness, Sight

ENGINES = Catalogue("engine", {"local": "shoal.engine.local:LocalEngine"})

__all__ = ["ENGINES", "Can", "Engine", "Gang", "Liveness", "Sight"]
