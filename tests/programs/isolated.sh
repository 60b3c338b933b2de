#!/bin/sh
# A launch script that starts Python isolated: neither PYTHONPATH nor the script's folder is searched.
here=$(cd "$(dirname "$0")" && pwd)
"${PYTHON:-python}" -I "$here/plain.py" "$@"
