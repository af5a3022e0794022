# Ends one PostgreSQL server and removes its directories once pgassay has gone, however it went.
# $1: the server's directory; $2: its socket's directory, or nothing. Standard input is a pipe
# whose other end only pgassay holds, so reading it lasts as long as pgassay lives.
base=$1
socket=$2
while read -r _; do :; done

# pgassay stopped the server itself: nothing to do.
[ -d "$base" ] || [ -d "$socket" ] || exit 0

# A process counts only if it is PostgreSQL's ($2: or one certain program's) and works inside our
# directory.
lives_here() {
    case $(readlink "/proc/$1/cwd") in "$base" | "$base"/*) ;; *) return 1 ;; esac
    case $(readlink "/proc/$1/exe") in
    */"${2:-postgres}"* | */initdb*) ;;
    # A server under valgrind.
    */callgrind-* | */valgrind*) [ "$2" != initdb ] || return 1 ;;
    *) return 1 ;;
    esac
}

# Signals the processes that live here until there are none, $3 tries at the most.
end_all() {
    tries=0
    while [ $tries -lt "$3" ]; do
        tries=$((tries + 1))
        left=
        for directory in /proc/[0-9]*; do
            lives_here "${directory#/proc/}" "$2" && left="$left ${directory#/proc/}"
        done
        [ -n "$left" ] || return 0
        kill -"$1" $left
        sleep 0.2
    done
    return 1
}

# An immediate shutdown first: it gives the shared memory back.
pid=
[ -r "$base/data/postmaster.pid" ] && read -r pid <"$base/data/postmaster.pid"
case $pid in '' | *[!0-9]*) pid= ;; esac
if [ -n "$pid" ] && lives_here "$pid"; then
    kill -QUIT "$pid"
    tries=0
    while [ $tries -lt 50 ] && lives_here "$pid"; do
        tries=$((tries + 1))
        sleep 0.1
    done
fi

# Then initdb alone: a server that it runs ends in order when its input ends. Then all that is
# left, in order and the hard way. A process that was just being started may show up late: hence
# the repetition.
tries=0
while [ $tries -lt 10 ]; do
    tries=$((tries + 1))
    end_all TERM initdb 10
    end_all TERM postgres 10 || end_all KILL postgres 20
    rm -rf -- "$base" ${socket:+"$socket"}
    [ ! -e "$base" ] && { [ -z "$socket" ] || [ ! -e "$socket" ]; } && exit 0
    sleep 0.2
done
exit 1
