"""Lesson 4: a job from Python: submit it, follow it, read its lines, fetch what it wrote.

    python examples/04_sdk/sdk.py

What the command line does, the SDK does with the same words: every key of the job file is an argument. A server is
started if none runs.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import shoal

here = Path(__file__).parent

job = shoal.submit(here / "steps.py", framework="command", workers=2, args=["--steps", "5"], tags=["lesson"])
print(f"submitted {job.id} ({job.name}), now {job.state}")

job.follow()  # prints the lines of all ranks as they come and returns when the job has ended
print(f"{job.state} with exit code {job.exit_code}")

print("the last two lines of worker-1:")
for line in job.logs(rank=1, tail=2):
    print(f"  {line.rank} said {line.text!r}")

print("what happened to it:")
for event in job.events():
    print(f"  {event['kind']}: {event['message']}")

with TemporaryDirectory() as folder:
    fetched = job.get(folder, "outputs")
    print(f"it wrote {sorted(path.name for path in Path(fetched).rglob('*.txt'))}")

print("my last jobs with the tag 'lesson':")
for found in shoal.jobs(tag="lesson", limit=3):
    print(f"  {found.id} {found.name} {found.state}")
