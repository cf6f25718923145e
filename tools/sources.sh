# The .cpp files of the folder $1, sorted, one a line, without the folder; nothing if there is none.
[ -d "$1" ] || exit 0
cd "$1" && for f in *.cpp; do [ -f "$f" ] && echo "$f"; done | LC_ALL=C sort
