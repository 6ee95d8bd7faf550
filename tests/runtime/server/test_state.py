"""What routes share."""

from ramet.runtime.server.state import ServerState
from tests.runtime.server.speaking_server import Served, error_of


def test_the_model_is_called_by_its_names_only(server: Served) -> None:
    state: ServerState = server.app.state.server
    assert (state.model, state.model_names) == ("speaking", ("speaking",))
    state.check_model(None)
    state.check_model("speaking")
    assert error_of(server.chat(model="x" * 5000), 404)["param"] == "model"
