"""The sandbox's command line: what is hidden, what is shown in it, and in which order."""

from __future__ import annotations

from shoal.engine.bubblewrap import View, command, outermost

VIEW = View(
    hidden=("/home", "/tmp", "/srv/shoal", "/home/ann"),
    reads=("/home/ann/venv", "/srv/shoal/public", "/srv/shoal/gangs/k-1", "/usr"),
    writes=("/srv/shoal/gangs/k-1/shepherd", "/data/here"),
    tmp="/srv/shoal/gangs/k-1/tmp/local",
    devices=("/dev/nvidia0",),
)


def pairs(words: tuple[str, ...], flag: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == flag]


def test_what_is_hidden_is_empty_and_closed_and_tmp_is_its_own() -> None:
    words = command("bwrap", VIEW, root=False)
    assert pairs(words, "--tmpfs") == ["/dev/shm", "/home", "/srv/shoal"]
    assert pairs(words, "--remount-ro") == ["/home", "/srv/shoal"]
    at = words.index("/srv/shoal/gangs/k-1/tmp/local")
    assert words[at - 1 : at + 2] == ("--bind", "/srv/shoal/gangs/k-1/tmp/local", "/tmp")


def test_what_is_shown_comes_after_what_it_lies_in_and_only_what_was_hidden_is_shown_again() -> None:
    words = command("bwrap", VIEW, root=False)
    assert pairs(words, "--ro-bind") == ["/", "/home/ann/venv", "/srv/shoal/public", "/srv/shoal/gangs/k-1"]
    assert pairs(words, "--bind")[1:] == ["/data/here", "/srv/shoal/gangs/k-1/shepherd"]
    assert words.index("/srv/shoal/gangs/k-1") < len(words) - 1 - words[::-1].index("/srv/shoal/gangs/k-1/shepherd")
    assert pairs(words, "--dir") == ["/home/ann", "/srv/shoal", "/srv/shoal/gangs", "/srv/shoal/gangs/k-1"]


def test_processes_have_numbers_of_their_own_and_nothing_ties_them_to_the_server() -> None:
    words = command("bwrap", VIEW, root=False)
    assert {"--unshare-pid", "--unshare-ipc", "--new-session"} <= set(words)
    assert not {"--die-with-parent", "--unshare-net", "--unshare-all"} & set(words)
    assert pairs(words, "--dev-bind") == ["/dev/nvidia0"]


def test_root_keeps_only_what_it_takes_to_become_someone_else() -> None:
    assert "--cap-drop" not in command("bwrap", VIEW, root=False)
    words = command("bwrap", VIEW, root=True)
    assert pairs(words, "--cap-drop") == ["ALL"]
    assert pairs(words, "--cap-add") == ["CAP_SETUID", "CAP_SETGID"]


def test_a_folder_in_a_hidden_one_is_not_hidden_again() -> None:
    assert outermost(["/a/b", "/a", "/ab", "/a/b/c"]) == ["/a", "/ab"]
