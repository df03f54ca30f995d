import math

import pytest

from shoal.job.compared import Course, Mark, compare, course_of


def course(name: str, losses: list[float], pace: float = 1.0, metric: str = "loss") -> Course:
    marks = [Mark(at * pace, at, at * 32, at * 1000, {metric: loss}) for at, loss in enumerate(losses, start=1)]
    return Course(name, tuple(marks))


def falling(low: float) -> list[float]:
    return [max(low, 10.0 - at) for at in range(30)]


def test_the_first_to_come_near_the_best_of_all_wins() -> None:
    found = compare([course("slow", falling(1.0), pace=3.0), course("quick", falling(1.0), pace=1.0)])
    assert found.winner == "quick" and found.goal == pytest.approx(1.0 + 0.05 * 9.0)


def test_speed_without_learning_does_not_win() -> None:
    found = compare([course("hasty", falling(6.0), pace=0.01), course("sound", falling(1.0), pace=1.0)])
    assert found.winner == "sound"


def test_a_hairs_breadth_at_twice_the_time_does_not_win() -> None:
    found = compare([course("quick", falling(1.1), pace=1.0), course("thorough", falling(1.0), pace=2.0)])
    assert found.winner == "quick"


def test_one_that_diverged_cannot_win_and_does_not_set_the_goal() -> None:
    found = compare([course("good", falling(1.0)), course("bad", [math.nan] * 30)])
    assert found.winner == "good"


def test_accuracy_is_better_the_higher() -> None:
    good = course("good", [0.1, 0.5, 0.9] * 4, metric="accuracy")
    found = compare([good, course("bad", [0.1] * 12, metric="accuracy")])
    assert found.metric == "accuracy" and found.winner == "good"


def test_a_goal_that_nobody_reached_has_no_winner() -> None:
    assert compare([course("a", falling(5.0))], goal=1.0).winner is None
    assert compare([Course("nothing", ())]).winner is None


def test_a_lucky_single_report_does_not_count() -> None:
    lucky = course("lucky", [9.0, 9.0, 9.0, 9.0, 0.0, 9.0, 9.0, 9.0])
    assert lucky.reached("loss", 0.5, rising=False) is None


def record(time: float, step: int, loss: float, **more: object) -> dict[str, object]:
    seconds = {"compute": 0.5, "wait": 0.5, "exchange": 0.0, "data": 0.0}
    went = {"seconds": seconds, "bytes": {"sent": 10, "received": 10}, "staleness": {}}
    return {"time": time, "step": step, "samples": step * 8, "values": {"loss": loss}, **went, **more}


def test_the_records_of_all_workers_are_one_course() -> None:
    reports = {
        "worker-0": [record(101.0, 1, 3.0), record(103.0, 2, 2.0, staleness={"0": 1, "2": 1})],
        "worker-1": [record(102.0, 1, 4.0)],
    }
    found = course_of("ps-async", reports, job="j1")
    assert [(m.seconds, m.steps, m.samples, m.sent) for m in found.marks] == [
        (1.0, 1, 8, 10),
        (2.0, 1, 16, 20),
        (3.0, 2, 24, 30),
    ]
    assert (found.waited, found.staleness, found.job) == (0.5, 1.0, "j1")


def test_what_is_not_a_number_is_read_and_cannot_win() -> None:
    reports = {"worker-0": [record(101.0, 1, "nan")]}  # type: ignore[arg-type]
    assert course_of("gossip", reports).best("loss", rising=False) is None


def test_a_comparison_is_plain_data() -> None:
    plain = compare([course("a", falling(1.0))]).to_dict()
    assert plain["courses"][0]["seconds_to_goal"] is not None and plain["winner"] == "a"
