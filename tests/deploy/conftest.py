"""Reports of failed tests with a federation: the last lines of its logs are part of them."""

from collections.abc import Generator

import pytest

from flfw.engines.layout import FederationLayout

_LINES = 40
_USUAL = "[92mINFO"  # Flower's colour for what goes well


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a test that failed."""
    report = yield
    layout = getattr(item, "funcargs", {}).get("federation")
    if report.failed and isinstance(layout, FederationLayout):
        for path in sorted(layout.folder.glob("*/super*.log")):
            lines = [line for line in path.read_text(errors="replace").splitlines() if _USUAL not in line]
            report.sections.append((str(path.relative_to(layout.folder)), "\n".join(lines[-_LINES:])))
    return report
