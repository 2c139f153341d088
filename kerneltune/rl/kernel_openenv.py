"""OpenEnv (0.10) over the evaluator's service: the environment, its server, and the client.

    uvicorn kernel_openenv:app --port 8000                # a WebSocket session is a rollout
    with KernelClient(base_url="ws://127.0.0.1:8000").sync() as env:
        told = env.reset(task="softmax", reward="fast_0")
        told = env.step(KernelAction(name="update", arguments={"source": "...", "rationale": "..."}))

A step's reward is that of the attempt that it was about; None where nobody knows, and before it was judged.
"""

from typing import Any

from kernel_service import Fault, begin, call, close, outcome
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

MOST_ROLLOUTS = 64  # at a time; the service takes so many of one client


class KernelAction(Action):
    """A call of `update`, `bench`, `reflect` or `look`; `end` judges what is left and ends the rollout."""

    name: str
    arguments: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it


class KernelObservation(Observation):
    """What a policy may be shown. `fault`: the service failed, and the rollout says nothing about its kernels."""

    text: str
    fault: bool = False


class KernelEnvironment(Environment[KernelAction, KernelObservation, State]):
    """One rollout after the other."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._path, self._state = "", State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **asked: Any) -> KernelObservation:
        """Begin a rollout; `asked` is what POST /sessions takes: task or reference_code, language, reward, limits."""
        self.close()
        self._state = State(episode_id=episode_id, step_count=0)
        try:
            told = begin(**asked)
        except Fault as error:
            return KernelObservation(text=str(error), fault=True, done=True)
        self._path = told["path"]
        return KernelObservation(text=f"{told['system']}\n\n{told['prompt']}")

    def step(self, action: KernelAction, timeout_s: float | None = None, **_: Any) -> KernelObservation:
        """Call a tool."""
        self._state.step_count += 1
        try:
            if action.name == "end":
                reward = outcome(self._path)["reward"]
                self.close()
                return KernelObservation(text="", done=True, reward=reward)
            told = call(self._path, action.name, action.arguments)
        except (Fault, ValueError) as error:  # the latter is the policy's, which may go on
            fault = isinstance(error, Fault)
            return KernelObservation(text=str(error), fault=fault, done=fault)
        return KernelObservation(text=told["text"], done=told["over"], reward=told["reward"])

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state

    def close(self) -> None:
        """End the rollout."""
        if self._path:
            close(self._path)
        self._path = ""


class KernelClient(EnvClient[KernelAction, KernelObservation, State]):
    """The environment from elsewhere."""

    def _step_payload(self, action: KernelAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[KernelObservation]:
        known = {"done": bool(payload.get("done")), "reward": payload.get("reward")}
        seen = KernelObservation(**{**payload.get("observation", {}), **known})
        return StepResult(observation=seen, **known)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


app = create_app(
    KernelEnvironment, KernelAction, KernelObservation, env_name="kernels", max_concurrent_envs=MOST_ROLLOUTS
)
