# Ends one PostgreSQL server and removes its directories after pgassay has ended for any reason.
# $1: the server's directory; $2: its socket's directory, or empty. Standard input is a pipe
# whose other end only pgassay holds, so reading it blocks until pgassay ends. A line of it has the PID
# of the postmaster that was started: a file of the server's could be replaced, and is not opened.
base=$1
socket=$2
pid=
while read -r started; do pid=$started; done

# pgassay stopped the server itself: nothing to do.
[ -d "$base" ] || [ -d "$socket" ] || exit 0

# True for a process that runs PostgreSQL (or the program $2) and has its working directory in ours.
lives_here() {
    case $(readlink "/proc/$1/cwd") in "$base" | "$base"/*) ;; *) return 1 ;; esac
    program=$(readlink "/proc/$1/exe")
    # Its name alone: psql is in a directory such as /usr/lib/postgresql, too.
    case ${program##*/} in
    "${2:-postgres}"* | initdb*) ;;
    # A server under valgrind.
    callgrind-* | valgrind*) [ "$2" != initdb ] || return 1 ;;
    *) return 1 ;;
    esac
}

# Signals the server's processes until there are none, at most $3 times.
end_all() {
    tries=0
    while [ $tries -lt "$3" ]; do
        tries=$((tries + 1))
        left=
        # At once, since with many processes this takes long, and a PID may have another by its end.
        for directory in /proc/[0-9]*; do
            lives_here "${directory#/proc/}" "$2" || continue
            left=some
            kill -"$1" "${directory#/proc/}"
            kill -CONT "${directory#/proc/}"
        done
        [ -n "$left" ] || return 0
        sleep 0.2
    done
    return 1
}

# Continues the server's processes that are stopped: they act on no other signal but KILL.
resume_all() {
    for directory in /proc/[0-9]*; do
        lives_here "${directory#/proc/}" && kill -CONT "${directory#/proc/}"
    done
}

# An immediate shutdown first: it releases the shared memory.
if [ -n "$pid" ] && lives_here "$pid"; then
    kill -QUIT "$pid"
    resume_all
    tries=0
    while [ $tries -lt 50 ] && lives_here "$pid"; do
        tries=$((tries + 1))
        sleep 0.1
    done
fi

# Removes everything except what the next start needs to find the shared memory. Only names in the
# working directory are used: a path through a directory of the server's could lead anywhere.
remove_except_pid_file() {
    cd -P "$base" && [ "$(pwd -P)" = "$base" ] || return
    for name in * .[!.]*; do
        case $name in data | lock) ;; *) rm -rf -- "./$name" ;; esac
    done
    cd -P data && [ "$(pwd -P)" = "$base/data" ] || return
    for name in * .[!.]*; do
        [ "$name" = postmaster.pid ] || rm -rf -- "./$name"
    done
}

# Removes a directory, and its lock last: without one, the next start removes only an empty directory.
remove() {
    (
        cd -P "$1" && [ "$(pwd -P)" = "$1" ] || exit
        for name in * .[!.]* ..?*; do
            [ "$name" = lock ] || rm -rf -- "./$name"
        done
        for name in * .[!.]* ..?*; do
            [ "$name" = lock ] || { [ ! -e "$name" ] && [ ! -L "$name" ]; } || exit
        done
        rm -f ./lock
    )
    rmdir -- "$1"
}

# Then initdb alone: the server that it runs exits cleanly when its input ends. Then all other
# processes, with TERM and then KILL. Repeated, since a process that is just being started may
# appear late.
tries=0
while [ $tries -lt 10 ]; do
    tries=$((tries + 1))
    end_all TERM initdb 10
    end_all TERM postgres 10 || end_all KILL postgres 20
    # A server that was killed did not remove this file, nor its shared memory. That is beyond a
    # shell script; the next start of pgassay finds it by this file, and removes both.
    if [ -e "$base/data/postmaster.pid" ]; then
        (remove_except_pid_file)
        exit 0
    fi
    [ ! -e "$base" ] || remove "$base"
    [ -z "$socket" ] || [ ! -e "$socket" ] || remove "$socket"
    [ ! -e "$base" ] && { [ -z "$socket" ] || [ ! -e "$socket" ]; } && exit 0
    sleep 0.2
done
exit 1
