"""Who reads which samples: fixed parts, shards handed out as asked for, endless streams.

A run has one `Feed`:

    feed = Feed(world, strategy, group=…, seeing=…, tally=…, place=lambda: (replica, replicas), stop=run.should_stop)
    feed.shard(loader, sharded=False, seed=None)            iterable, len() where known; the same for the same loader
    feed.stream(source, deal=False, publish=…, every=1000)  iterator without end
    feed.settle()                    when training begins: random numbers go on where the checkpoint left them
    feed.unfinished()                whether a pass of this epoch is under way: the epoch is not done
    feed.state() / feed.load(state)  where every loader stands
    feed.finish()                    leaves the clerk; harmless twice

It counts batches and samples into the tally, reads the epoch from it, and spends DATA in `seeing`.
"""

from shoal.train.data.feed import Feed
from shoal.train.data.shard import Shard

__all__ = ["Feed", "Shard"]
