#!/bin/sh
# A launch script that sets PYTHONPATH itself and ends in python: whatever PYTHONPATH held is gone.
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here"
exec "${PYTHON:-python}" -m tinytrain "$@"
