import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadSpec, UnknownName
from shoal.strategy import STRATEGIES, Option, parse


def test_a_name_alone_has_every_option_at_its_default() -> None:
    chosen = parse("ps-ssp")
    assert chosen.options["staleness"] == 3 and chosen.given == ()


def test_options_are_read_as_what_they_are() -> None:
    options = parse("local-sgd:every=20,outer=nesterov,outer_lr=0.5,fragments=4").options
    assert (options["every"], options["outer"], options["outer_lr"], options["fragments"]) == (20, "nesterov", 0.5, 4)
    assert parse("allreduce:unused=true").options["unused"] is True


@pytest.mark.parametrize("text", ["ps-async", "ps-ssp:staleness=7,compress=topk", "allreduce:unused=true", "gossip"])
def test_what_is_printed_reads_as_the_same(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ps-asinc", "did you mean 'ps-async'"),
        ("ps-ssp:stalenes=3", "did you mean 'staleness'"),
        ("ps-ssp:staleness=-1", "must be 0.."),
        ("ps-ssp:staleness=few", "must be 0.."),
        ("ps-async:scale=invers", "did you mean 'inverse'"),
        ("ps-async:a=nan", "must be 0..100"),
        ("allreduce:unused=perhaps", "true | false"),
        ("ps-ssp:staleness", "not key=value"),
        ("ps-ssp:staleness=1,staleness=2", "given twice"),
        ("ps-softsync:c=2,n=2", "contradict"),
        ("local-sgd:every=15,fragments=4", "multiple of fragments"),
        ("local-sgd:every=16,fragments=4,delay=4", "must be less than"),
        ("local-sgd:outer=nesterov,slowmo=0.5", "contradict"),
        ("gossip:topology=given", "needs graph="),
        ("gossip:graph=0>1", "topology=given"),
        ("ps-sync:compress=powersgd", "for allreduce"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write_instead(text: str, told: str) -> None:
    with pytest.raises(BadSpec) as refused:
        parse(text)
    assert told in refused.value.message


def test_an_unknown_option_names_those_there_are() -> None:
    with pytest.raises(UnknownName, match="known: .*staleness"):
        parse("ps-ssp:zzz=1")


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_default_is_allowed_by_its_own_bounds(name: str) -> None:
    for option in STRATEGIES[name].options:
        if option.default != "":  # no text at all stands for "not given"
            assert option.read(str(option.default).lower()) == option.default
        assert option.meaning and option.bounds()


@given(st.text(max_size=40))
def test_any_text_is_a_strategy_or_a_clear_refusal(text: str) -> None:
    try:
        parse(text)
    except BadSpec as refused:
        assert refused.message


def test_a_number_is_bound_on_both_sides() -> None:
    option = Option("x", 0.5, "half", 0.0, 1.0)
    assert option.bounds() == "0..1" and option.read("1") == 1.0
    with pytest.raises(BadSpec, match="must be 0..1: half"):
        option.read("1.5")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("local-sgd:outer_lr=0.5", "read only with outer=nesterov"),
        ("local-sgd:slowmo_lr=0.5", "read only with slowmo=…"),
        ("ps-async:a=0.5", "read only with scale=poly or hinge"),
        ("allreduce:ratio=0.5", "read only with compress=topk"),
        ("allreduce:decay=0.5", "read only with average=ema"),
        ("pipeline:split=maks", "did you mean 'marks'"),
    ],
)
def test_an_option_that_would_not_be_read_is_refused(text: str, told: str) -> None:
    with pytest.raises(BadSpec) as refused:
        parse(text)
    assert told in refused.value.message
