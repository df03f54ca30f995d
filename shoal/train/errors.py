"""What the training library raises on purpose, under the tree of `shoal.errors`.

TrainError
├── PeerLost                a worker or server this one needs is gone; carries who
├── WaitedTooLong           nobody died, but somebody did not come; carries who and where
├── Disagreement            workers that do not train the same thing; carries the first difference
├── BadModel                a model, loss or gradient that cannot be trained so
│   └── NotFinite           a gradient that is not a number, with nan=stop
├── BadOptimizer            an optimizer this strategy cannot run
├── BadCheckpoint           a checkpoint of another model, or one that is not whole
└── NoRoom                  shared memory is too small for what should lie there
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import ShoalError


class TrainError(ShoalError):
    code = "train"


class PeerLost(TrainError):
    code = "peer_lost"

    def __init__(self, message: str, who: Sequence[str] = ()) -> None:
        super().__init__(message, who=list(who))
        self.who = list(who)


class WaitedTooLong(TrainError):
    code = "waited_too_long"

    def __init__(self, message: str, who: Sequence[str] = ()) -> None:
        super().__init__(message, who=list(who))
        self.who = list(who)


class Disagreement(TrainError):
    code = "disagreement"


class BadModel(TrainError):
    code = "bad_model"


class NotFinite(BadModel):
    code = "not_finite"


class BadOptimizer(TrainError):
    code = "bad_optimizer"


class BadCheckpoint(TrainError):
    code = "bad_checkpoint"


class NoRoom(TrainError):
    code = "no_room"
