"""Dies by SIGKILL in the first attempt, as if the machine had run out of memory; works in the second."""

import os
import signal
import time

attempt, rank = os.environ["SHOAL_ATTEMPT"], os.environ["SHOAL_RANK"]
print(f"attempt {attempt} of rank {rank}", flush=True)

if attempt == "1" and rank == "1":
    os.kill(os.getpid(), signal.SIGKILL)

for second in range(3):
    time.sleep(1)
    print(f"progress {second + 1}/3", flush=True)
print(f"rank {rank} is done")
