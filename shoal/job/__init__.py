"""The job: what a user asked for, its roles, its states and reasons, and its life. Pure: no I/O, no clock."""

from shoal.job.fields import Resources
from shoal.job.life import Event, Happening, JobRecord, advance
from shoal.job.plan import Plan, Slot, make_plan
from shoal.job.reasons import Fault, Reason
from shoal.job.roles import Role, RoleSpec
from shoal.job.spec import JobSpec
from shoal.job.states import State

__all__ = [
    "Event",
    "Fault",
    "Happening",
    "JobRecord",
    "JobSpec",
    "Plan",
    "Reason",
    "Resources",
    "Role",
    "RoleSpec",
    "Slot",
    "State",
    "advance",
    "make_plan",
]
