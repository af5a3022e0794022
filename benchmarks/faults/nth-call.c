/* Runs a command and makes its n-th system call of one name fail. Only the process of the command is
 * concerned, with all its threads; its children are not. Linux on x86-64, by ptrace(2).
 *
 *   nth-call [OPTION...] COMMAND [ARGUMENT...]
 *
 *   --report FILE   one line per name: `count NAME N` (until the fault); and one for the fault: `fault NAME N RESULT CALL`
 *   --fail NAME N RESULT   RESULT: an errno, or `short` for half of the bytes that were asked for
 *   --from          every later call of the name fails too, except for writes to standard error
 *   --paths FILE    one line per call that names a path: `PID NAME RESULT FLAGS PATH [PATH]`
 *   --children      --paths also for children
 *
 * The exit code is the command's, or 128 + its signal.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "nth-call needs x86-64: it reads and changes registers by name"
#endif

/* The system calls that can fail. `arguments`: f file descriptor, d directory, p path, x flags, s socket
 * address, - anything else. `length`: the index of the argument that `short` halves, or -1. */
static const struct call {
    const char *name;
    long number;
    const char *arguments;
    int length;
} calls[] = {
#define CALL(name, arguments, length) {#name, SYS_##name, arguments, length}
    CALL(read, "f", 2), CALL(write, "f", 2), CALL(pread64, "f", 2), CALL(pwrite64, "f", 2),
    CALL(readv, "f", -1), CALL(writev, "f", -1), CALL(recvfrom, "f", 2), CALL(sendto, "f", 2),
    CALL(recvmsg, "f", -1), CALL(sendmsg, "f", -1),
    CALL(open, "px", -1), CALL(openat, "dpx", -1), CALL(openat2, "dp", -1), CALL(creat, "p", -1),
    CALL(stat, "p", -1), CALL(lstat, "p", -1), CALL(fstat, "f", -1), CALL(newfstatat, "dp", -1),
    CALL(statx, "dp", -1), CALL(access, "p", -1), CALL(faccessat, "dp", -1), CALL(faccessat2, "dp", -1),
    CALL(readlink, "p", -1), CALL(readlinkat, "dp", -1), CALL(getdents64, "f", 2), CALL(lseek, "f", -1),
    CALL(mkdir, "p", -1), CALL(mkdirat, "dp", -1), CALL(rmdir, "p", -1), CALL(unlink, "p", -1),
    CALL(unlinkat, "dpx", -1), CALL(rename, "pp", -1), CALL(renameat, "dpdp", -1),
    CALL(renameat2, "dpdpx", -1), CALL(link, "pp", -1), CALL(linkat, "dpdp", -1),
    CALL(symlink, "-p", -1), CALL(symlinkat, "-dp", -1), CALL(chmod, "px", -1), CALL(fchmod, "fx", -1),
    CALL(fchmodat, "dpx", -1), CALL(chown, "p", -1), CALL(fchown, "f", -1), CALL(lchown, "p", -1),
    CALL(fchownat, "dp", -1), CALL(truncate, "p", -1), CALL(ftruncate, "f", -1),
    CALL(fallocate, "f", -1), CALL(fsync, "f", -1), CALL(fdatasync, "f", -1), CALL(flock, "f", -1),
    CALL(fcntl, "f-", -1), CALL(ioctl, "fx", -1), CALL(dup, "f", -1), CALL(dup2, "f", -1),
    CALL(dup3, "f", -1), CALL(pipe2, "", -1), CALL(socket, "", -1), CALL(socketpair, "", -1),
    CALL(connect, "fs", -1), CALL(bind, "fs", -1), CALL(listen, "f", -1), CALL(accept4, "f", -1),
    CALL(setsockopt, "f", -1), CALL(getsockopt, "f", -1), CALL(getsockname, "f", -1),
    CALL(shutdown, "f", -1), CALL(poll, "", -1), CALL(ppoll, "", -1), CALL(epoll_create1, "", -1),
    CALL(epoll_ctl, "f", -1), CALL(epoll_wait, "f", -1), CALL(epoll_pwait, "f", -1),
    CALL(eventfd2, "", -1), CALL(timerfd_create, "", -1), CALL(timerfd_settime, "f", -1),
    CALL(signalfd4, "f", -1), CALL(io_uring_setup, "", -1), CALL(io_uring_enter, "f", -1),
    CALL(io_uring_register, "f", -1), CALL(perf_event_open, "", -1), CALL(process_vm_readv, "-", -1),
    CALL(mmap, "---", -1), CALL(mremap, "", -1), CALL(mprotect, "", -1),
    CALL(clone, "x", -1), CALL(clone3, "", -1), CALL(vfork, "", -1), CALL(fork, "", -1),
    CALL(wait4, "", -1), CALL(waitid, "", -1), CALL(kill, "", -1), CALL(pidfd_open, "", -1),
    CALL(pidfd_send_signal, "", -1), CALL(getrandom, "", -1), CALL(clock_nanosleep, "", -1),
    CALL(nanosleep, "", -1), CALL(sched_setaffinity, "", -1), CALL(prlimit64, "", -1),
    CALL(rt_sigaction, "x", -1), CALL(sysinfo, "", -1), CALL(shmctl, "", -1), CALL(shmat, "", -1),
    CALL(execve, "p", -1), CALL(chdir, "p", -1), CALL(statfs, "p", -1), CALL(fstatfs, "f", -1),
    CALL(utimensat, "dp", -1), CALL(copy_file_range, "f", -1), CALL(sendfile, "f", -1),
#undef CALL
};
enum { CALLS = sizeof calls / sizeof *calls, TASKS = 4096 };

static const struct { const char *name; int number; } errors[] = {
    {"EINTR", EINTR}, {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM},
    {"EAGAIN", EAGAIN}, {"EACCES", EACCES}, {"EPERM", EPERM}, {"ENOENT", ENOENT},
    {"ECONNRESET", ECONNRESET}, {"ECONNREFUSED", ECONNREFUSED}, {"ENOSYS", ENOSYS}, {"short", 0},
};

struct task {
    pid_t tid;
    int child;        /* of another process than the command's */
    int entered;      /* index in `calls`, or -1 */
    int failing;      /* the result of this call is replaced */
    char text[2 * PATH_MAX + 200];
};
static struct task *tasks[TASKS];
static unsigned long counts[CALLS];
static int fail_call = -1, fail_error, from, children, started, done;
static unsigned long fail_nth;
static FILE *report, *paths;

static void die(const char *what) {
    fprintf(stderr, "nth-call: %s: %s\n", what, strerror(errno));
    exit(125);
}

static struct task *task_of(pid_t tid) {
    for (int i = 0; i < TASKS; i++) {
        if (tasks[i] && tasks[i]->tid == tid) return tasks[i];
    }
    for (int i = 0; i < TASKS; i++) {
        if (tasks[i]) continue;
        tasks[i] = calloc(1, sizeof *tasks[i]);
        if (!tasks[i]) die("calloc");
        tasks[i]->tid = tid;
        tasks[i]->entered = -1;
        return tasks[i];
    }
    errno = EMFILE;
    die("tasks");
    return NULL;
}

static void forget(pid_t tid) {
    for (int i = 0; i < TASKS; i++) {
        if (tasks[i] && tasks[i]->tid == tid) {
            free(tasks[i]);
            tasks[i] = NULL;
        }
    }
}

/* Bytes of the task's memory; pages after the last readable one are missing. */
static size_t memory(pid_t tid, unsigned long address, char *bytes, size_t length) {
    size_t got = 0;
    while (got < length) {
        size_t piece = 4096 - (address + got) % 4096;
        if (piece > length - got) piece = length - got;
        struct iovec to = {bytes + got, piece}, it = {(void *)(address + got), piece};
        if (process_vm_readv(tid, &to, 1, &it, 1, 0) != (ssize_t)piece) break;
        got += piece;
        if (memchr(bytes, 0, got)) break;
    }
    return got;
}

static void append(char *text, size_t size, const char *link) {
    char target[PATH_MAX];
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return;
    target[length] = 0;
    strncat(text, target, size - strlen(text) - 1);
}

/* Words for the arguments of a call, paths with the directory that they are relative to. */
static void describe(struct task *task, const struct call *call, const unsigned long *values) {
    char *text = task->text, link[64], path[PATH_MAX] = "";
    size_t size = sizeof task->text;
    long directory = AT_FDCWD;
    text[0] = 0;
    for (int i = 0; call->arguments[i]; i++) {
        size_t used = strlen(text);
        char kind = call->arguments[i];
        if (kind == 'd') {
            directory = (int)values[i];
        } else if (kind == 'x') {
            snprintf(text + used, size - used, " %#lx", values[i]);
        } else if (kind == 'f' && (int)values[i] >= 0) {
            snprintf(text + used, size - used, " %d=", (int)values[i]);
            snprintf(link, sizeof link, "/proc/%d/fd/%d", task->tid, (int)values[i]);
            append(text, size, link);
        } else if (kind == 's') {
            size_t got = memory(task->tid, values[i] + 2, path, 108);
            path[got < 108 ? got : 107] = 0;
            for (char *at = path; *at; at++) if (*at < 32 || *at > 126) *at = '?';
            snprintf(text + used, size - used, " %s", path);
        } else if (kind == 'p') {
            size_t got = values[i] ? memory(task->tid, values[i], path, sizeof path) : 0;
            path[got < sizeof path ? got : sizeof path - 1] = 0;
            snprintf(text + used, size - used, " ");
            if (path[0] != '/') {
                if (directory == AT_FDCWD) snprintf(link, sizeof link, "/proc/%d/cwd", task->tid);
                else snprintf(link, sizeof link, "/proc/%d/fd/%ld", task->tid, directory);
                append(text, size, link);
                strncat(text, "/", size - strlen(text) - 1);
            }
            strncat(text, path, size - strlen(text) - 1);
            directory = AT_FDCWD;
        }
    }
    for (char *at = text; *at; at++) if (*at == '\n') *at = '?';
}

static int names_path(const struct call *call) {
    return strpbrk(call->arguments, "ps") != NULL;
}

static void on_entry(struct task *task, struct user_regs_struct *registers) {
    unsigned long values[] = {registers->rdi, registers->rsi, registers->rdx, registers->r10, registers->r8};
    task->entered = -1;
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].number == (long)registers->orig_rax) task->entered = i;
    }
    task->failing = 0;
    if (task->entered < 0) return;
    const struct call *call = &calls[task->entered];
    int fails = 0;
    if (started && !task->child) {
        counts[task->entered]++;
        fails = task->entered == fail_call
            && (counts[task->entered] == fail_nth || (from && counts[task->entered] > fail_nth))
            && !(from && call->number == SYS_write && values[0] == STDERR_FILENO);
    }
    if (fails || (paths && names_path(call))) describe(task, call, values);
    if (!fails) return;
    if (counts[task->entered] == fail_nth && report) {
        fprintf(report, "fault %s %lu %d%s\n", call->name, fail_nth, fail_error, task->text);
        fflush(report);
    }
    /* Nothing else is to be seen, so the command goes on at its own speed. */
    done = !from && !paths;
    if (fail_error == 0) {
        if (registers->rdx > 1) registers->rdx /= 2;
    } else {
        registers->orig_rax = -1;
        task->failing = 1;
    }
    if (ptrace(PTRACE_SETREGS, task->tid, 0, registers) < 0 && errno != ESRCH) die("PTRACE_SETREGS");
}

static void on_exit_of(struct task *task, struct user_regs_struct *registers) {
    if (task->failing) {
        registers->rax = -(long)fail_error;
        if (ptrace(PTRACE_SETREGS, task->tid, 0, registers) < 0 && errno != ESRCH) die("PTRACE_SETREGS");
    }
    if (paths && started && task->entered >= 0 && names_path(&calls[task->entered])) {
        const char *name = calls[task->entered].name;
        fprintf(paths, "%d %s %ld%s\n", task->tid, name, (long)registers->rax, task->text);
    }
    task->entered = -1;
    task->failing = 0;
}

static void at_system_call(struct task *task) {
    struct __ptrace_syscall_info info;
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, task->tid, sizeof info, &info) < 0) return;
    if (ptrace(PTRACE_GETREGS, task->tid, 0, &registers) < 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) on_entry(task, &registers);
    else if (info.op == PTRACE_SYSCALL_INFO_EXIT) on_exit_of(task, &registers);
}

/* One stop of one task; returns the signal that it continues with. */
static int at_stop(pid_t tid, int status, pid_t command) {
    struct task *task = task_of(tid);
    int event = status >> 16, signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
        at_system_call(task);
        return 0;
    }
    if (event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK) {
        unsigned long new = 0;
        ptrace(PTRACE_GETEVENTMSG, tid, 0, &new);
        struct task *other = task_of((pid_t)new);
        other->child = task->child || event != PTRACE_EVENT_CLONE;
        return 0;
    }
    /* The first stop of a new task, a group stop, or the exec of the command. */
    if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
        ptrace(PTRACE_LISTEN, tid, 0, 0);
        return -1;
    }
    /* What came before is this program's own. */
    if (event == PTRACE_EVENT_EXEC && tid == command) started = 1;
    return event ? 0 : signal;
}

static int trace(pid_t command) {
    int status, code = 125;
    pid_t tid;
    while ((tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (tid <= 0) continue;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            forget(tid);
            if (tid != command) continue;
            code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            if (!children) return code;
            continue;
        }
        int signal = at_stop(tid, status, command);
        /* A task that has just entered a call is needed until its end, to replace the result. */
        int stays = !done || task_of(tid)->entered >= 0;
        if (signal >= 0 && ptrace(stays ? PTRACE_SYSCALL : PTRACE_DETACH, tid, 0, signal) < 0 && errno != ESRCH) die("ptrace");
        if (!stays) forget(tid);
    }
    return code;
}

static int index_of(const char *name) {
    for (int i = 0; i < CALLS; i++) {
        if (!strcmp(calls[i].name, name)) return i;
    }
    fprintf(stderr, "nth-call: unknown system call %s\n", name);
    exit(125);
}

static char **parse(int count, char **words) {
    int i = 1;
    for (; i < count && !strncmp(words[i], "--", 2); i++) {
        if (!strcmp(words[i], "--report") && i + 1 < count) {
            if (!(report = fopen(words[++i], "we"))) die(words[i]);
        } else if (!strcmp(words[i], "--paths") && i + 1 < count) {
            if (!(paths = fopen(words[++i], "we"))) die(words[i]);
        } else if (!strcmp(words[i], "--from")) {
            from = 1;
        } else if (!strcmp(words[i], "--children")) {
            children = 1;
        } else if (!strcmp(words[i], "--fail") && i + 3 < count) {
            fail_call = index_of(words[++i]);
            fail_nth = strtoul(words[++i], NULL, 10);
            fail_error = -1;
            i++;
            for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
                if (!strcmp(errors[e].name, words[i])) fail_error = errors[e].number;
            }
            if (fail_error < 0 || (fail_error == 0 && calls[fail_call].length != 2)) {
                fprintf(stderr, "nth-call: %s cannot end with %s\n", words[i - 2], words[i]);
                exit(125);
            }
        } else {
            break;
        }
    }
    if (i >= count) {
        fprintf(stderr, "usage: nth-call [OPTION...] COMMAND [ARGUMENT...]: see the source's first lines\n");
        exit(125);
    }
    return words + i;
}

int main(int count, char **words) {
    char **arguments = parse(count, words);
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) < 0) die("pipe2");
    pid_t command = fork();
    if (command < 0) die("fork");
    if (command == 0) {
        char byte;
        if (read(ready[0], &byte, 1) != 1) _exit(125);
        execvp(arguments[0], arguments);
        die(arguments[0]);
    }
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
    if (children) options |= PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK;
    if (ptrace(PTRACE_SEIZE, command, 0, options) < 0) die("PTRACE_SEIZE");
    if (ptrace(PTRACE_INTERRUPT, command, 0, 0) < 0) die("PTRACE_INTERRUPT");
    if (write(ready[1], "", 1) != 1) die("write");
    task_of(command);
    int code = trace(command);
    for (int i = 0; report && i < CALLS; i++) {
        if (counts[i]) fprintf(report, "count %s %lu\n", calls[i].name, counts[i]);
    }
    if (report) fclose(report);
    if (paths) fclose(paths);
    return code;
}
