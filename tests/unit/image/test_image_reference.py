"""Names of images: Docker's, Enroot's and Pyxis's ways of writing them mean the same image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.image.reference import Reference, parse

SHA = "sha256:" + "0a" * 32
ENROOT = [
    ("nvcr.io/nvidia/pytorch:25.12-py3", "docker://nvcr.io#nvidia/pytorch:25.12-py3"),
    ("nvcr.io#nvidia/pytorch:25.12-py3", "docker://nvcr.io#nvidia/pytorch:25.12-py3"),
    ("docker://nvcr.io/nvidia/pytorch:1", "docker://nvcr.io#nvidia/pytorch:1"),
    ("$oauthtoken@nvcr.io#nvidia/a:1", "docker://$oauthtoken@nvcr.io#nvidia/a:1"),
    ("localhost:5000/a:1", "docker://localhost:5000#a:1"),
    ("localhost/a", "docker://localhost#a:latest"),
    ("public.ecr.aws/x/y:2", "docker://public.ecr.aws#x/y:2"),
    ("ubuntu:24.04", "docker://ubuntu:24.04"),
    ("pytorch/pytorch:2.9.1-devel", "docker://pytorch/pytorch:2.9.1-devel"),
    ("docker.io/library/ubuntu:24.04", "docker://library/ubuntu:24.04"),
    (f"nvcr.io/nvidia/pytorch:25.12-py3@{SHA}", f"docker://nvcr.io#nvidia/pytorch:{SHA}"),
]


@pytest.mark.parametrize(("text", "enroot"), ENROOT, ids=[text for text, _ in ENROOT])
def test_what_enroot_is_told(text: str, enroot: str) -> None:
    assert parse(text).enroot == enroot


@pytest.mark.parametrize(
    ("text", "docker"),
    [
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("docker://nvcr.io#nvidia/a:1", "nvcr.io/nvidia/a:1"),
        (f"nvcr.io/a:1@{SHA}", f"nvcr.io/a:1@{SHA}"),
    ],
)
def test_what_docker_is_told(text: str, docker: str) -> None:
    assert parse(text).docker == docker


@pytest.mark.parametrize(
    "text",
    ["", "image.sqsh", "/shared/image.sqsh", "./image", "Upper/Case:1", "a b", "nvcr.io#", "a:b:c",
     "dockerd://a:1", "a@sha256:12", "nvcr.io##a", "a:1\n", "..#a", "-#a",
     "a..b/c", "a-.b/c", "h.io:0/a", "h.io:65536/a", "h.io:99999999/a", "h.io:" + "9" * 5000 + "/a",
     "h.io/a//b", "h.io/a/../b"],
)  # fmt: skip
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


HOSTS = st.sampled_from(["nvcr.io", "localhost:5000", "a.b-c.example", None])
NAMES = st.from_regex(r"[a-z0-9]+(/[a-z0-9]+(-[a-z0-9]+)?)?", fullmatch=True)
TAGS = st.none() | st.from_regex(r"[a-z0-9][a-z0-9.-]{0,9}", fullmatch=True)


@given(st.builds(Reference, HOSTS, NAMES, TAGS, st.sampled_from([None, SHA])))
def test_both_forms_lead_back_to_the_same_image(reference: Reference) -> None:
    assert parse(reference.enroot).enroot == reference.enroot
    assert parse(reference.docker).docker == reference.docker
