"""`serve --ray` where Ray does not come up, without Ray: tests/ecosystem has the rest."""

from unittest.mock import MagicMock

import pytest

from bertfuse.errors import BertfuseError
from bertfuse.serving import on_ray
from bertfuse.serving.checks import Limits


class _RayError(Exception):
    pass


@pytest.mark.parametrize("error", [_RayError, RuntimeError])
@pytest.mark.parametrize("fails", ["start", "run"])
def test_what_does_not_start_is_one_line(fails: str, error: type[Exception]) -> None:
    ray, serve, server = MagicMock(), MagicMock(), MagicMock(devices=["cpu"])
    ray.exceptions.RayError = _RayError
    ray.cluster_resources.return_value = {}
    getattr(serve, fails).side_effect = error("The actor died.\n\tclass_name: ProxyActor")
    server.limits = Limits()
    with pytest.raises(BertfuseError, match=r"^the server did not come up: The actor died$"):
        on_ray._start(ray, serve, [], server, MagicMock(least=1, most=1, fronts=1), "auto")
