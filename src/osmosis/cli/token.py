import re
from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import prompts
from osmosis.cli.core.app import check_word, guess_hint, new_app
from osmosis.cli.core.context import current
from osmosis.cli.core.output import Mode
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.api.accounts import MAX_TOKEN_DAYS, SCOPES, TOKEN_DAYS, USUAL_SCOPES, NewToken, TokenRow

app = new_app(
    help="""Tokens for machines: create, list, delete.

    Example:
        osmosis token create ci --expires 30d
        osmosis token list
        osmosis token delete ci
    """
)


@app.command()
def create(
    name: Annotated[str, Argument(help="Name of the token, such as ci or gpu-box")],
    scope: Annotated[list[str] | None, Option(help=f"{', '.join(SCOPES)} [default: {', '.join(USUAL_SCOPES)}]")] = None,
    expires: Annotated[str, Option(help="Lifetime, such as 12h or 30d; at most 366d")] = f"{TOKEN_DAYS}d",
) -> OperationResult | int:
    """Create a token for a machine and print it, alone, on standard output. It is not shown again.

    It can do no more than you can, in all your workspaces or, with --workspace, in one. `api` is for the API, `git`
    for the git host, `worker` for running jobs, `inference` for calling deployed models. Revoking the login that
    created it revokes it as well; logging out does not.

    Example:
        osmosis token create ci --expires 30d
        osmosis token create gpu-box --scope worker --workspace demo > worker.token
        osmosis token create laptop --scope git --json
    """
    ctx = current()
    scopes = [
        check_word(word, SCOPES, f"--scope {word!r}: a scope is one of {', '.join(SCOPES)}")
        for word in scope or USUAL_SCOPES
    ]
    if not name.strip() or len(name) > 200:
        raise ValidationError("the name of a token has 1 to 200 characters", field="name")
    seconds = parse_lifetime(expires, MAX_TOKEN_DAYS)
    wish = NewToken(name=name, scopes=scopes, workspace=ctx.options.workspace, expires_in=seconds)
    token = ctx.client(scoped=False).accounts.make_token(wish)
    where = f"in workspace {token.workspace}" if token.workspace else "in all your workspaces"
    summary = f"token {name} ({', '.join(token.scopes or scopes)}, {where}) works until {when(token.expires_at)}"
    if ctx.mode is not Mode.JSON:
        ctx.output.say(f"{summary}; it is shown this once")
        ctx.output.stdout.write(f"{token.token}\n")
        return 0
    steps = [
        NextStep("log in with it", command=f"osmosis login --platform {ctx.platform_url} --token -"),
        NextStep("take it back", command=f"osmosis token delete {token.token_id}"),
    ]
    message = f"{summary}; it is shown this once:\n{token.token}"
    return OperationResult("token.create", message, token.to_dict(), next_steps=steps)


def parse_lifetime(text: str, most_days: int) -> int:
    match = re.fullmatch(r"(\d{1,6})([mhd])", text.strip())
    seconds = int(match[1]) * {"m": 60, "h": 3600, "d": 86400}[match[2]] if match else 0
    if not 60 <= seconds <= most_days * 86400:
        message = f"--expires {text!r}: say how long it lives, from 1m to {most_days}d"
        raise ValidationError(message, hint="for example --expires 12h or --expires 30d")
    return seconds


@app.command("list")
def list_tokens() -> ListResult:
    """List your tokens: logins, browser sessions and tokens you created; never their values.

    Example:
        osmosis token list
    """
    rows = current().client(scoped=False).accounts.tokens()
    columns = [
        Column("current", "", show=lambda v: "*" if v else ""),
        *build_columns("name=Name", "kind=Kind"),
        Column("scopes", "Scopes", show=" ".join),
        Column("workspace", "Workspace", show=lambda v: v or "all"),
        Column("expires_at", "Expires", show=when),
        Column("last_used_at", "Last used", show=when),
        Column("id", "Id", wide=True),
    ]
    return ListResult([row.to_dict() for row in rows], columns, empty="no tokens: osmosis token create NAME")


@app.command("delete")
def delete(token: Annotated[str, Argument(help="Its name or id, as `osmosis token list` shows it")]) -> OperationResult:
    """Delete a token, which stops working at once, with every token created with it.

    Example:
        osmosis token delete ci
    """
    ctx = current()
    client = ctx.client(scoped=False)
    rows = client.accounts.tokens()
    row = find_token(rows, token)
    label = f"{row.name} ({row.kind})" + (", the login of this terminal" if row.current else "")
    children = _made_with(rows, row.id)
    also = f" and {len(children)} made with it ({', '.join(child.name for child in children)})" if children else ""
    prompts.agree(ctx, f"Revoke token {label}{also}?", "token.revoke")
    client.accounts.revoke(row.id)
    revoked_ids = [child.id for child in (row, *children)]
    return OperationResult(
        "token.revoke", f"token {row.name}{also} is revoked", {**row.to_dict(), "revoked": revoked_ids}
    )


def _made_with(rows: list[TokenRow], token_id: str) -> list[TokenRow]:
    children = [row for row in rows if row.parent_id == token_id]
    return [*children, *(deeper for row in children for deeper in _made_with(rows, row.id))]


def find_token(rows: list[TokenRow], token: str) -> TokenRow:
    matching = [row for row in rows if token in (row.id, row.name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        ids = ", ".join(row.id for row in matching)
        raise Conflict(f"{len(matching)} tokens are named {token!r}", hint=f"say which by its id: {ids}")
    hint = guess_hint(token, [row.name for row in rows], "osmosis token list")
    raise NotFound(f"you have no token {token!r}", hint=hint)
