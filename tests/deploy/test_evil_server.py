"""Evil server: real sites under policies with pins and budgets; a SuperLink over gRPC with TLS sends any message.

The lies are the rows of `tests.support.server_lies`. Everything that a site sends in answer is read here.
`tests/deploy/test_lies_of_a_server.py` tells them in one process.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

from flfw.dp import site_ledger
from flfw.engines import processes
from flfw.engines.layout import FederationLayout, environment
from flfw.engines.superlink import bundle
from tests.support import sites_at_work as sites
from tests.support.agreed_runs import AGREED, POOR, PRIVATE, REASON, RICH, honest_question, policy_of, require_agreed
from tests.support.asking import Question
from tests.support.lying_superlink import LyingSuperLink, serving
from tests.support.server_lies import LIES, NOTHING, OVER_GRPC, SPENDING, VERSIONS, Lie

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]


@dataclass
class Federation:
    """Sites at work, and a SuperLink that lies to them.

    Attributes:
        layout: its folder and addresses.
        link: the SuperLink.
        nodes: node of each site.
        app: the accepted bundle.
        lying: what ends with the SuperLink.
        run: number of the last run.
    """

    layout: FederationLayout
    link: LyingSuperLink
    nodes: dict[int, int]
    app: bytes
    lying: ExitStack
    run: int = 10_000

    def question(self, site: int) -> Question:
        """Return an honest question to a site, in a run of its own."""
        self.run += 1
        return honest_question(self.run, site, self.app)

    def lines(self, site: int) -> int:
        """Count the lines of a site's ledger."""
        path = self.layout.site(site) / site_ledger.FILE
        return len(path.read_text().splitlines()) if path.exists() else 0

    def pid(self, site: int) -> int | None:
        """Return the process of a site."""
        return processes.alive(self.layout.site(site), "supernode")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    layout = sites.made(tmp_path_factory.mktemp("server") / "federation")
    with ExitStack() as lying:
        made = Federation(layout, LyingSuperLink(), {}, bundle(), lying)
        lying.enter_context(serving(layout, made.link))
        for site in AGREED:
            (layout.site(site) / "policy.toml").write_text(policy_of(site, made.app).text())
            start(layout, site)
            lying.callback(processes.stop, layout.site(site), "supernode")
            made.nodes[site] = made.link.node(site)
        yield made


def start(layout: FederationLayout, number: int) -> None:
    site = layout.site(number)
    processes.start(layout.supernode_command(number), site, "supernode", environment(site / "home"))


def tell(federation: Federation, site: int, lie: Lie) -> None:
    """Tell a lie to a site; require its answer, what else it sends, that it lives on, and its ledger."""
    pid, lines, question = federation.pid(site), federation.lines(site), federation.question(site)
    lie.tell(question)
    work, received = question.work(federation.nodes[site]), len(federation.link.received)
    came = federation.link.give(federation.nodes[site], work, 60 if lie.words != NOTHING else 4)
    everything = federation.link.received[received:]
    assert came == (lie.words != NOTHING)
    if came and lie.words:
        assert work.answer.has_error(), work.answer
        reason = work.answer.error.reason or ""
        assert lie.words in reason and len(reason) <= 1000 and reason.isprintable(), reason
        assert REASON.fullmatch(reason), reason
    elif came:
        assert work.answer.has_content(), work.answer
        require_agreed(work.answer.content, question.kind, site)
    require_nothing_else(federation, everything, came and not lie.words, site)
    assert federation.pid(site) == pid is not None
    assert federation.lines(site) - lines == lie.counts


def require_nothing_else(federation: Federation, received: list[bytes], upload: bool, site: int) -> None:
    """Require that nothing left a site but one message, without content if it is a refusal, and no path."""
    kinds = [kind for one in received if (kind := one.split(b" ", 1)[0].decode("latin-1")) in inflatable_class_registry]
    assert kinds.count("Message") <= 1 and (upload or set(kinds) <= {"Message"}), kinds
    here = str(federation.layout.folder).encode()
    assert not any(here in one for one in received)


@pytest.mark.slow
def test_an_honest_question_is_answered(federation: Federation) -> None:
    """Else no lie below would prove anything."""
    tell(federation, RICH, Lie("", "", lambda question: None, 1))
    tell(federation, RICH, Lie("", "", lambda question: setattr(question, "kind", "query")))


MARKED = [
    pytest.param(lie, id=lie.name, marks=pytest.mark.slow if lie.name in OVER_GRPC else pytest.mark.nightly)
    for lie in LIES
]


@pytest.mark.parametrize("lie", MARKED)
def test_a_site_gives_nothing_for_a_lie(federation: Federation, lie: Lie) -> None:
    tell(federation, RICH, lie)


@pytest.mark.nightly
@pytest.mark.parametrize("lie", SPENDING, ids=[lie.name for lie in SPENDING])
def test_a_budget_is_spent_once(federation: Federation, lie: Lie) -> None:
    tell(federation, POOR, lie)


@pytest.mark.nightly
@pytest.mark.parametrize("lie", VERSIONS, ids=[lie.name for lie in VERSIONS])
def test_private_tensors_go_on_from_the_last_two_steps_alone(federation: Federation, lie: Lie) -> None:
    tell(federation, PRIVATE, lie)


@pytest.mark.slow
def test_nothing_that_the_server_wrote_moves_a_cursor_in_a_sites_log(federation: Federation) -> None:
    for site in AGREED:
        log = (federation.layout.site(site) / "supernode.log").read_bytes()
        assert b"\x1b[2J" not in log and b"\x1b]" not in log and b"\x07" not in log


@pytest.mark.nightly
def test_an_honest_run_afterwards_ends_well(federation: Federation, tmp_path: Path) -> None:
    """On a SuperLink of Flower's own, with the sites' ledgers as they are: who has spent all is left out by name."""
    federation.lying.close()
    (federation.layout.site(PRIVATE) / "policy.toml").write_text(policy_of(RICH, federation.app).text())
    flags = ("--method", "fed_cdp", "--net", "linear", "--rounds", "1", "--metrics", "none", *sites.COMMON)
    with sites.at_work(federation.layout):
        more = ("--set", "sampled.train=50", "noise_source=secure", "--expert", "on_client_failure=drop")
        sites.run(federation.layout, tmp_path / "run", *flags, *more)
    (row,) = sites.result(tmp_path / "run")["rounds"]
    ((client, reason),) = [(failure["client"], failure["reason"]) for failure in row["failed"]]
    assert (client, row["clients"]) == (POOR, 2) and reason.startswith("this site's budget: "), reason
