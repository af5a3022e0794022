# Ends one PostgreSQL server and removes its directories after pgassay has ended for any reason.
# $1: the server's directory; $2: its socket's directory, or empty. Standard input is a pipe
# whose other end only pgassay holds, so reading it blocks until pgassay ends.
base=$1
socket=$2
while read -r _; do :; done

# pgassay stopped the server itself: nothing to do.
[ -d "$base" ] || [ -d "$socket" ] || exit 0

# True for a process that runs PostgreSQL (or the program $2) and has its working directory in ours.
lives_here() {
    case $(readlink "/proc/$1/cwd") in "$base" | "$base"/*) ;; *) return 1 ;; esac
    case $(readlink "/proc/$1/exe") in
    */"${2:-postgres}"* | */initdb*) ;;
    # A server under valgrind.
    */callgrind-* | */valgrind*) [ "$2" != initdb ] || return 1 ;;
    *) return 1 ;;
    esac
}

# Signals the server's processes until there are none, at most $3 times.
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

# An immediate shutdown first: it releases the shared memory.
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

# Then initdb alone: the server that it runs exits cleanly when its input ends. Then all other
# processes, with TERM and then KILL. Repeated, since a process that is just being started may
# appear late.
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
