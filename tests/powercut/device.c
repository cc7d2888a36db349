/* device.c - a FUSE filesystem with one file, "disk", and a loop device on it.
 *
 * It speaks the kernel's protocol itself: a dozen requests, one at a time, so that the journal has
 * one order. The loop device reports a volatile write cache; every flush of the filesystem above,
 * forced unit access included, arrives here as FSYNC behind the writes that it covers. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/loop.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

#define REQUEST_BYTES ((1u << 20) + PAGE)
#define DISK_NODE 2u

static _Noreturn void cannot(const char *what)
{
    printf("cannot %s: %s\n", what, strerror(errno));
    exit(3);
}

/* ---- the server */

struct server {
    int fd;
    struct store *store;
};

static void answer(const struct server *server, uint64_t unique, int error, const void *bytes,
                   size_t count)
{
    struct fuse_out_header head = {(uint32_t)(sizeof head + count), -error, unique};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)(uintptr_t)bytes, count}};
    /* ENOENT: the request was interrupted and nobody waits. */
    if (writev(server->fd, parts, count == 0 ? 1 : 2) < 0 && errno != ENOENT && errno != ENODEV) {
        perror("powercut device: answer");
        _exit(2);
    }
}

static struct fuse_attr attributes(const struct server *server, uint64_t node)
{
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = PAGE};
    attr.mode = node == DISK_NODE ? S_IFREG | 0600 : S_IFDIR | 0700;
    if (node == DISK_NODE) {
        attr.size = server->store->disk_bytes;
        attr.blocks = attr.size / 512;
    }
    return attr;
}

static void greet(const struct server *server, uint64_t unique, const struct fuse_init_in *in)
{
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION};
    out.minor = in->minor < FUSE_KERNEL_MINOR_VERSION ? in->minor : FUSE_KERNEL_MINOR_VERSION;
    out.max_readahead = in->max_readahead;
    out.flags = in->flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES);
    out.max_background = 64;
    out.congestion_threshold = 48;
    out.max_write = 1u << 20;
    out.max_pages = 256;
    out.time_gran = 1;
    answer(server, unique, 0, &out, sizeof out);
}

static void serve_one(const struct server *server, const struct fuse_in_header *head,
                      const void *body)
{
    const uint64_t unique = head->unique;
    struct store *store = server->store;
    switch (head->opcode) {
    case FUSE_INIT: greet(server, unique, body); break;
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = DISK_NODE, .attr_valid = 3600, .entry_valid = 3600};
        out.attr = attributes(server, DISK_NODE);
        const int error = strcmp(body, "disk") == 0 ? 0 : ENOENT;
        answer(server, unique, error, &out, error == 0 ? sizeof out : 0);
        break;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 3600};
        out.attr = attributes(server, head->nodeid);
        answer(server, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: {
        struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
        answer(server, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: {
        const struct fuse_read_in *in = body;
        uint64_t count = in->offset >= store->disk_bytes ? 0 : store->disk_bytes - in->offset;
        count = count < in->size ? count : in->size;
        answer(server, unique, 0, store->disk + in->offset, count);
        break;
    }
    case FUSE_WRITE: {
        const struct fuse_write_in *in = body;
        struct fuse_write_out out = {.size = in->size};
        const int error = in->offset + in->size > store->disk_bytes ? EFBIG : 0;
        if (error == 0)
            store_write(store, in->offset, in + 1, in->size);
        answer(server, unique, error, &out, error == 0 ? sizeof out : 0);
        break;
    }
    case FUSE_FSYNC:
        store_flush(store);
        answer(server, unique, 0, NULL, 0);
        break;
    case FUSE_STATFS: {
        struct fuse_statfs_out out = {.st = {.bsize = PAGE, .frsize = PAGE, .namelen = 255}};
        answer(server, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: break; /* these have no answer */
    case FUSE_RELEASE: answer(server, unique, 0, NULL, 0); break;
    default: answer(server, unique, ENOSYS, NULL, 0);
    }
}

static _Noreturn void serve(const struct server *server)
{
    static _Alignas(64) uint8_t request[REQUEST_BYTES];
    for (;;) {
        const ssize_t got = read(server->fd, request, sizeof request);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (got < (ssize_t)sizeof(struct fuse_in_header))
            _exit(2);
        serve_one(server, (const struct fuse_in_header *)request,
                  request + sizeof(struct fuse_in_header));
    }
}

/* ---- the loop device */

static void check_write_cache(const char *loop)
{
    char path[128], text[32] = "";
    snprintf(path, sizeof path, "/sys/block/%s/queue/write_cache", strrchr(loop, '/') + 1);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(text, sizeof text, file) == NULL ||
        strcmp(text, "write back\n") != 0) {
        fprintf(stderr, "%s says \"%s\", so flushes would not reach the journal\n", path, text);
        exit(2);
    }
    fclose(file);
}

static void attach(struct device *device)
{
    char path[600];
    snprintf(path, sizeof path, "%s/disk", device->folder);
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        cannot("open /dev/loop-control");
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        cannot("open the FUSE file");
    for (int attempt = 0; attempt < 64; attempt++) { /* others may take the free one first */
        const int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0)
            cannot("find a free loop device");
        snprintf(device->loop, sizeof device->loop, "/dev/loop%d", number);
        const int loop = open(device->loop, O_RDWR | O_CLOEXEC);
        if (loop < 0)
            cannot("open a loop device");
        struct loop_config config = {.fd = (uint32_t)file, .block_size = 512};
        config.info.lo_flags = LO_FLAGS_DIRECT_IO;
        const int status = ioctl(loop, LOOP_CONFIGURE, &config);
        const int error = errno;
        close(loop);
        if (status == 0) {
            close(file);
            close(control);
            check_write_cache(device->loop);
            return;
        }
        device->loop[0] = '\0';
        errno = error;
        if (error != EBUSY)
            break;
    }
    cannot("attach a loop device to the FUSE file");
}

void device_start(struct device *device, struct store *store, const char *folder)
{
    char options[100];
    memset(device, 0, sizeof *device);
    snprintf(device->folder, sizeof device->folder, "%s", folder);
    struct server server = {open("/dev/fuse", O_RDWR | O_CLOEXEC), store};
    if (server.fd < 0)
        cannot("open /dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", server.fd);
    /* The server keeps the mounts of whoever started this, and they never see the filesystems on
     * the device: else one process more would hold them, and a killed server would unmount them by
     * asking itself. */
    int mounted[2];
    const pid_t parent = getpid();
    if (pipe(mounted) != 0)
        cannot("make a pipe");
    device->server = fork();
    if (device->server == 0) {
        char byte;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        if (getppid() != parent || read(mounted[0], &byte, 1) != 1)
            _exit(1);
        serve(&server);
    }
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        cannot("have mounts of its own");
    if (mount("powercut", folder, "fuse", MS_NOSUID | MS_NODEV, options) != 0)
        cannot("mount a FUSE filesystem");
    if (write(mounted[1], "", 1) != 1)
        cannot("start the server");
    close(mounted[0]);
    close(mounted[1]);
    close(server.fd);
    attach(device);
}

void device_stop(struct device *device)
{
    const int loop = device->loop[0] == '\0' ? -1 : open(device->loop, O_RDWR | O_CLOEXEC);
    if (loop >= 0) {
        (void)ioctl(loop, LOOP_CLR_FD);
        close(loop);
    }
    if (umount2(device->folder, 0) != 0)
        (void)umount2(device->folder, MNT_DETACH);
    kill(device->server, SIGKILL);
    waitpid(device->server, NULL, 0);
}

int device_mount(const struct device *device, const char *folder, const char *type,
                 const char *options)
{
    const int loop = open(device->loop, O_RDONLY | O_CLOEXEC);
    if (loop < 0)
        return errno;
    /* Whoever looked at the device meanwhile must not have left pages of another image. */
    (void)ioctl(loop, BLKFLSBUF);
    close(loop);
    return mount(device->loop, folder, type, MS_NOATIME, options) == 0 ? 0 : errno;
}

int device_unmount(const char *folder)
{
    return umount2(folder, 0) == 0 ? 0 : errno;
}
