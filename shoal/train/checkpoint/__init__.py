"""Checkpoints: whole or not at all, written while training goes on, read by any number of workers.

A run has one `Keeper`:

    keeper = Keeper(world, strategy, group=…, seeing=…, tally=…, unfinished=feed.unfinished)
    keeper.add(name, state, load, scope=…)           "whole": rank 0 is asked and writes; "shared": all are asked,
                                                     rank 0 writes; "each": everyone writes and reads its own
    keeper.add_unit(unit, averages=None)             model, optimizers, synchroniser or partition of a `Unit`
    keeper.resume()                                  Resumed(epoch, step, tag, extra, path) or None; what is added later
                                                     is loaded when it is added
    keeper.save(tag, best=None, keep=3, extra=None)  waits for the copy to host memory only
    keeper.finish(ok=True)                           waits for the writer, raises what it met; harmless twice

`Averages(model, "ema"|"swa", decay, partition=None)`: `update()` after a step (ema) or an epoch (swa), `weights()`.
`Publisher(folder, weights)`: the weights alone, as a file with a version, for those who use the model.
`weights(folder, which)`: the weights out of a checkpoint, for a script that trains no more.
Files that servers write into a checkpoint: `checkpoint.beside`.
"""

from shoal.train.checkpoint.average import Averages
from shoal.train.checkpoint.keeper import Keeper, Resumed
from shoal.train.checkpoint.publish import Published, Publisher, published
from shoal.train.checkpoint.weights import weights

__all__ = ["Averages", "Keeper", "Published", "Publisher", "Resumed", "published", "weights"]
