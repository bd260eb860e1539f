/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of the `xdp` plane know of datagrams under way on a processor, and how what is left of one gets to user
 * space.
 *
 * Invariants:
 * - A datagram is kept until no queue can hold a clone of it: the queues of all devices hold fewer frames than there are inputs.
 * - A datagram of which a copy was refused is told to user space once, with the first place without its copy.
 */
#ifndef REFLECT_XDP_INPUT_H
#define REFLECT_XDP_INPUT_H

#include "shared.h"
#include "xdp.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct xdp_shared);
	__uint(max_entries, 1);
} xdp_shared SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct xdp_outcome);
	__uint(max_entries, 1);
} xdp_outcomes SEC(".maps");

_Static_assert(sizeof(struct xdp_shared) == REFLECT_XDP_SHARED_BYTES, "as user space has it");
_Static_assert(sizeof(struct xdp_device) == REFLECT_XDP_DEVICE_BYTES, "as user space has it");
_Static_assert(sizeof(struct xdp_job) == REFLECT_XDP_JOB_BYTES, "as user space has it");
_Static_assert(sizeof(struct xdp_outcome) == REFLECT_XDP_OUTCOME_BYTES, "as user space has it");

/* Of each device, a map for each class of sizes; each entry of it is that device with the egress program. */
struct fan {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, 1);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, REFLECT_XDP_DEVICES * REFLECT_XDP_CLASSES + 1); /* and one that nothing looks at */
	__uint(key_size, 4);
	__uint(value_size, 4);
	__array(values, struct fan);
} xdp_fans SEC(".maps");

/* A datagram under way on this processor. What is looked at for each clone stands first. */
struct input {
	__u32 number;  /* low bits of how many there were before it */
	__u32 flags;
	__u32 seen;    /* clones that were seen */
	__u32 first;   /* the first clone that becomes a copy */
	__u32 copies;  /* how many do */
	__u32 cursor;  /* the next place to look at, of all places */
	__u32 end;     /* after the last */
	__u32 group;   /* its index */
	__u32 sum;     /* of all that the UDP checksum is made of, without the destination's address and port */
	__u32 ip_sum;  /* IPv4: of the IP header without checksum and destination */
	__u32 clones;  /* that were asked for */
	__be16 except_port;
	__u16 told;    /* User space has it. */
	__u8 except[16];
	__u64 region;  /* of the lane */
	__u32 lane;    /* its number in the group */
	__u32 stop;    /* where to go on, once it is refused */
	struct rescue rescue;
	__u8 bytes[2056]; /* REFLECT_XDP_BYTES_MAX, and what fills up the last word; the verifier counts on 2047 and a word */
};

/* input.flags */
#define INPUT_REFUSED 1   /* No more copies of it are made here. */
#define INPUT_COUNTED 2   /* It is counted among those handed over. */
#define INPUT_JOB 4       /* It comes from user space, which waits for the outcome. */
#define INPUT_QUIET 8     /* It rings no bell. */
#define INPUT_IPV6 16
#define INPUT_NO_EXCEPT 32

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct input);
	__uint(max_entries, REFLECT_XDP_INPUTS);
} xdp_inputs SEC(".maps");

/* How many frames the kernel queues for a device before it sends them: DEV_MAP_BULK_SIZE. */
#define BULK 16

/* An entry of a bulk's log: a clone that was let through, the first of an input that was not, or a bell (`ring`). */
#define LOG_PASSED 1
#define LOG_REFUSED 2
#define LOG_BELL 3

struct entry {
	__u16 slot;
	__u16 what;
	__u32 place;
} __attribute__((aligned(8)));

union entry_word {
	struct entry entry;
	__u64 word;
};

/* What the egress program did with the queue that is being sent on this processor. */
struct bulk {
	__u32 next;    /* the number of the next input */
	__u32 logged;
	__u32 passed;
	__u32 odd;     /* The log has more in it than clones of one input that were let through. */
	struct entry log[BULK];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct bulk);
	__uint(max_entries, 1);
} xdp_bulks SEC(".maps");

struct frame4 {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

struct frame6 {
	struct ethhdr ethernet;
	struct ipv6hdr ip;
	struct udphdr udp;
} __attribute__((packed));

#define FRAME(type, ctx)                                                                                                       \
	({                                                                                                                     \
		type *_frame = (void *)(long)(ctx)->data;                                                                      \
		(void *)(_frame + 1) <= (void *)(long)(ctx)->data_end ? _frame : 0;                                            \
	})

/* The class of maps for a number of places, 1 to REFLECT_XDP_PLACES_MAX: exact up to 128, then in steps of a sixteenth. */
static __always_inline __u32 class_of(__u32 places)
{
	if (places <= 128)
		return places - 1;
	if (places <= 256)
		return 128 + (places - 129) / 8;
	return 144 + (places - 257) / 16;
}

/* How many entries the maps of a class have. */
static __always_inline __u32 class_places(__u32 class)
{
	if (class < 128)
		return class + 1;
	if (class < 144)
		return 128 + 8 * (class - 127);
	return 256 + 16 * (class - 143);
}

static __always_inline struct bulk *this_bulk(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xdp_bulks, &zero);
}

/* Which of the plane's devices has this index; REFLECT_XDP_DEVICES if none. */
static __always_inline __u32 device_slot(const struct xdp_shared *shared, __u32 device)
{
	__u32 slot;

#pragma unroll
	for (slot = 0; slot < REFLECT_XDP_DEVICES; slot++) {
		if (shared->device[slot].device == device)
			return slot;
	}
	return REFLECT_XDP_DEVICES;
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b && *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/* Gives an input its number, and the room to keep it. */
static __always_inline struct input *input_begin(struct bulk *bulk, struct counters *count)
{
	__u32 slot = bulk->next % REFLECT_XDP_INPUTS;
	struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

	if (!input)
		return 0;
	/* Clones that were never seen are no longer queued: the device took none at all. It is down, or gone. */
	if (input->clones && !input->seen && !(input->flags & (INPUT_REFUSED | INPUT_JOB)))
		count->undeliverable += input->copies;
	input->clones = 0;
	return input;
}

/* Keeps the payload, and adds it up. Returns a negative number if that is not possible. */
static __always_inline __s64 keep(struct xdp_md *ctx, struct input *input, __u32 offset, __u32 bytes)
{
	__s64 sum = 0;

	if (bytes > REFLECT_XDP_BYTES_MAX)
		return -1;
	if (bytes && bpf_xdp_load_bytes(ctx, offset, input->bytes, bytes))
		return -1;
	bytes &= 2047;
	*(__u32 *)(input->bytes + bytes) = 0;
	/* Older kernels add up no more than 512 bytes at once. */
	for (__u32 at = 0; at < 2048; at += 512) {
		__u32 rest = bytes - at;

		if (at >= bytes)
			break;
		rest = rest > 512 ? 512 : (rest + 3) & 1020;
		/* The compiler knows that it is no more; the verifier has to be told. */
		asm volatile("" : "+r"(rest));
		if (rest > 512)
			return -1;
		sum = bpf_csum_diff(0, 0, (__be32 *)(input->bytes + at), rest, sum);
		if (sum < 0)
			return sum;
	}
	return (__u32)sum;
}

/* Writes the input's number where its clones' Ethernet destination will stand. */
static __always_inline void tag(struct ethhdr *ethernet, __u32 number)
{
	*(__u32 *)ethernet->h_dest = number;
	*(__u16 *)(ethernet->h_dest + 4) = ~number;
}

/* Gives what is left of an input to user space. Its `stop` is set. */
static __always_inline void tell(struct input *input, struct group *group, struct counters *count)
{
	__u32 zero = 0;

	input->flags |= INPUT_REFUSED;
	if (input->told)
		return;
	input->told = 1;
	if (input->flags & INPUT_JOB) {
		struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

		if (outcome) {
			outcome->stop = input->stop;
			outcome->stopped = 1;
		}
		return;
	}
	if (!(input->flags & INPUT_COUNTED))
		hand_over(group, count);
	go_on_at(&input->rescue, input->lane, input->region, input->stop);

	__u32 bytes = input->rescue.bytes;

	if (bytes <= REFLECT_XDP_BYTES_MAX)
		put_rescue(&input->rescue, sizeof(input->rescue) + bytes, group, count);
}

#endif
