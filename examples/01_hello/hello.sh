#!/bin/sh
# Lesson 1: any program is a job.
#
#     shoal run --workers 2 --folder examples/01_hello -- sh hello.sh
#
# Every process of a gang is told who it is by SHOAL_* variables and who the others are by a file, the roster. Ports are
# reserved before the start, so nobody has to guess a free one. Nothing of Shoal needs to be installed where this runs.

echo "hello from $SHOAL_MEMBER: rank $SHOAL_RANK of $SHOAL_SIZE, on node $SHOAL_NODE, my port is $SHOAL_PORT_MAIN"
echo "all workers: $SHOAL_HOSTS_WORKER"

# One rank is enough to print what all of them were told.
if [ "$SHOAL_RANK" = 0 ]; then
    echo "the roster:"
    sed 's/}, {/},\n{/g' "$SHOAL_ROSTER"
    echo
fi
