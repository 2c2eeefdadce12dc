import subprocess
import sys

from osmosis.base.installation import extra_command, install_command, upgrade_command


def test_hints_name_packages_that_can_be_installed_whatever_an_index_calls_osmosis() -> None:
    assert sys.executable in install_command("a b")
    assert install_command("a b").endswith("'a b'")
    assert "fastmcp>=" in extra_command("mcp")
    assert "osmosis-ai" not in extra_command("mcp")
    assert "pyproject.toml" in extra_command("unknown")
    assert "git -C" in upgrade_command()  # the tests run in a clone
    subprocess.run(["sh", "-n", "-c", extra_command("harbor")], check=True)
