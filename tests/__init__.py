import pytest

pytest.register_assert_rewrite("tests.support")  # before anything imports it, so that its assertions explain themselves
