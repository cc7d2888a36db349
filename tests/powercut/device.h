/* device.h - the store as a block device: a FUSE file under a loop device. */
#ifndef DEVICE_H
#define DEVICE_H

#include <sys/types.h>

#include "store.h"

struct device {
    pid_t server;
    char folder[512]; /* where the FUSE filesystem is mounted */
    char loop[32]; /* /dev/loopN, "" before it is attached */
};

/* Starts the server process, moves this one into a mount namespace of its own, mounts `folder`,
 * attaches a loop device to the file in it. Exits with status 3 and a reason when this machine
 * cannot; status 2 when it does not flush as it must. */
void device_start(struct device *device, struct store *store, const char *folder);
/* Detaches, unmounts, ends the server. */
void device_stop(struct device *device);
/* Mounts and unmounts the filesystem on the device; 0 or an errno. */
int device_mount(const struct device *device, const char *folder, const char *type,
                 const char *options);
int device_unmount(const char *folder);

#endif
