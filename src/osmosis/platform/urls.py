from urllib.parse import quote

from osmosis.platform.settings import PlatformSettings


def run(settings: PlatformSettings, run_id: str) -> str:
    return f"{settings.url}/runs/{run_id}"


def rollout(settings: PlatformSettings, run_id: str, row_index: int, attempt: int) -> str:
    return f"{run(settings, run_id)}/rollouts/{row_index}/{attempt}"


def dataset(settings: PlatformSettings, dataset_id: str) -> str:
    return f"{settings.url}/datasets/{dataset_id}"


def model(settings: PlatformSettings, model_id: str) -> str:
    return f"{settings.url}/models/{model_id}"


def secrets(settings: PlatformSettings, workspace_name: str) -> str:
    return f"{settings.url}/{quote(workspace_name)}/secrets"


def repository(settings: PlatformSettings, workspace_name: str) -> str:
    return f"{settings.url}/{quote(workspace_name)}/repository"


def login(settings: PlatformSettings, code: str) -> str:
    return f"{settings.url}/login/link?code={quote(code)}"


def device(settings: PlatformSettings, user_code: str | None = None) -> str:
    page = f"{settings.url}/device"
    return f"{page}?user_code={quote(user_code)}" if user_code else page
