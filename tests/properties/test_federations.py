"""A federation's folder: its layout, its registrations, its processes, its certificates, and its sites' config."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.client.site import Site
from flfw.deploy import files as certificates
from flfw.dp.budget import budgeted
from flfw.engines import processes
from flfw.engines.layout import FederationLayout, registered_nodes
from flfw.errors import InputError
from tests.properties.changes import changed_bytes, changed_toml, changed_tree, unsealed
from tests.properties.reading import Folder, Reader, require_refused_or_valid

REGISTERED = {f"superlink/registered-{client}": f"{100 + client}\n".encode() for client in range(3)}
NODE = {
    "data-root": "/data",
    "state": "/state",
    "truth": "/truth",
    "volunteered": "0 1 2",
    "budget": "2.0 1e-05 example 0",
    "ledger": "/l",
}


def layout(path: Path) -> tuple[FederationLayout, object]:
    read = FederationLayout.read(path)
    commands = read.superlink_command(), read.supernode_command(0), read.register_command(0), read.connection
    return dataclasses.replace(read, folder=Path("/f")), len(commands)


def is_layout(read: Any) -> bool:
    one = read[0]
    numbers = (one.clients, one.port, one.control_port, one.site_port)
    return all(type(number) is int for number in numbers) and all(isinstance(a, str) for a in (one.host, one.listen))


def renewed(path: Path) -> bool:
    by = certificates.Pair((path / "ca.key").read_bytes(), (path / "ca.crt").read_bytes())
    return certificates.ends(by.public) < certificates.ends(certificates.make_server(by, ["127.0.0.1"]).public)


def are_nodes(nodes: Any) -> bool:
    return all(type(node) is int and client in range(3) for node, client in nodes.items())


@pytest.fixture(scope="module")
def readers(scratch: Path) -> dict[str, Reader]:
    FederationLayout(scratch, 3).write()
    files = {"federation.toml": (scratch / "federation.toml").read_bytes()}
    authority = certificates.make_authority()
    pair = {"ca.crt": authority.public, "ca.key": authority.private}
    pid = {"superlink/superlink.pid": b"999999999 12345\n"}
    anything = unsealed(changed_bytes)
    return {
        "layout": Reader(
            Folder(scratch / "federation", files), {"federation.toml": unsealed(changed_toml)}, layout, is_layout
        ),
        "registrations": Reader(
            Folder(scratch / "registered", {**files, **REGISTERED}),
            dict.fromkeys(REGISTERED, anything),
            lambda place: registered_nodes(place, 3),
            are_nodes,
        ),
        "processes": Reader(
            Folder(scratch / "running", pid),
            dict.fromkeys(pid, anything),
            lambda place: processes.alive(place / "superlink", "superlink"),
            lambda pid: pid is None,
        ),
        "certificates": Reader(
            Folder(scratch / "signed", pair), dict.fromkeys(pair, anything), renewed, refusals=(InputError, OSError)
        ),
    }


@pytest.mark.parametrize("name", ["layout", "registrations", "processes", "certificates"])
@given(data=st.data())
def test_a_changed_file_of_a_federation_is_refused_or_valid(
    data: DataObject, readers: dict[str, Reader], name: str
) -> None:
    readers[name].require_refused_or_valid(data)


@given(st.integers(1, 10_000), st.lists(st.integers(1024, 65535), min_size=3, max_size=3, unique=True))
def test_a_layout_is_read_as_it_was_written(readers: dict[str, Reader], clients: int, ports: list[int]) -> None:
    folder = readers["layout"].folder.lay()
    try:
        written = FederationLayout(folder, clients, "host.example", "0.0.0.0", *ports)
    except InputError:
        assume(False)
        raise
    written.write()
    assert FederationLayout.read(folder) == written


@given(data=st.data())
def test_a_changed_node_config_is_refused_or_a_sites(data: DataObject) -> None:
    changed = data.draw(changed_tree(NODE).filter(lambda config: isinstance(config, dict)))
    require_refused_or_valid(
        lambda: (Site.from_config(changed, "abc"), budgeted(changed)), is_valid=lambda read: isinstance(read[0], Site)
    )
