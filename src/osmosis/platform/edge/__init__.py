"""What every request passes before any route sees it: host names, sizes of bodies."""
