"""For `make test-changed`: all tests of a file run if one of them is to run.

pytest-testmon counts the lines of a fixture that several tests share for the first of them only.
"""

import pytest

_ITEMS = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Runs after marks deselect tests and before pytest-testmon, which is registered later."""
    config.stash[_ITEMS] = list(items)


class _Restore:
    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config, items):
        yield
        files = {item.path for item in items}
        items[:] = [item for item in config.stash[_ITEMS] if item.path in files]


def pytest_configure(config):
    config.pluginmanager.register(_Restore())
