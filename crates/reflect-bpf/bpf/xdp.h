/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of the `xdp` plane share with user space, beyond what all programs do (reflect.h).
 */
#ifndef REFLECT_XDP_H
#define REFLECT_XDP_H

#include "reflect.h"

/* How many devices the plane may copy to. */
#define REFLECT_XDP_DEVICES 4

/* The size classes of a device's maps, and the places of the largest: see `class_of`. */
#define REFLECT_XDP_CLASSES 160
#define REFLECT_XDP_PLACES_MAX 512

/* The longest payload that is copied here. A clone has one page for headroom, headers and payload. */
#define REFLECT_XDP_BYTES_MAX 2040

/* How many inputs a processor keeps. The bulk queues of all devices hold fewer: 16 frames each. */
#define REFLECT_XDP_INPUTS 128

/* How long the structures here are. */
#define REFLECT_XDP_SHARED_BYTES 136
#define REFLECT_XDP_DEVICE_BYTES 32
#define REFLECT_XDP_JOB_BYTES 64
#define REFLECT_XDP_OUTCOME_BYTES 32

/* The type of a frame that is for nobody: IEEE 802's first for local experiments. */
#define REFLECT_XDP_BELL 0x88b5

/* device.flags */
#define REFLECT_XDP_DEVICE_COPY 1 /* Its maps are filled, and its driver sends frames. */

/* A device: 32 bytes. */
struct xdp_device {
	__u32 device; /* the network device's index; 0 for none */
	__u32 flags;
	__u8 mac[6];
	__u16 spare;
	__u32 spares[4];
};

/* What all programs of the plane look at; user space's. */
struct xdp_shared {
	struct xdp_device device[REFLECT_XDP_DEVICES];
	__u64 copies_min; /* Datagrams with fewer copies pass: the program at the traffic-control hook makes these for less. */
};

/* What goes before the frame that user space has copied: 64 bytes. */
struct xdp_job {
	__u64 number;   /* comes back in the outcome */
	__u32 base;     /* the first place */
	__u32 count;    /* how many */
	__u32 copies;   /* to how many of them */
	__u32 device;   /* index of the network device */
	__be16 except_port;
	__u8 no_except;
	__u8 quiet;     /* It rings no bell. */
	__u8 except[16];
	__u32 spare[5];
};

/* What came of it: user space's and, while a job runs, the kernel's. */
struct xdp_outcome {
	__u64 number;
	__u32 seen;   /* frames that the device's program saw: none if the device takes none */
	__u32 copies; /* copies that the device took */
	__u32 stop;   /* the first place without its copy, if `stopped` */
	__u32 stopped;
	__u32 bells; /* bells that the device took */
	__u32 spare;
};

#endif
