/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every program of the reflector does in the same way: the maps, rates, counters, ones' complement sums, and the
 * decision on a datagram (`judge`). What differs is only how copies are made.
 */
#ifndef REFLECT_SHARED_H
#define REFLECT_SHARED_H

#include "reflect.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>

/* The sizes given here are the least; user space sets them when it loads the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct place);
	__uint(max_entries, 1);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct lane);
	__uint(max_entries, 1);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct group);
	__uint(max_entries, 1);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flight);
	__uint(max_entries, 1);
} flights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct totals);
	__uint(max_entries, 1);
} totals SEC(".maps");

/* When the bucket of each owner of a rate is full again. User space takes from these too. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sender_key);
	__type(value, struct sender);
	__uint(max_entries, 1);
} senders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct local_key);
	__type(value, __u32);
	__uint(max_entries, 4096);
} locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct counters);
	__uint(max_entries, 1);
} counts SEC(".maps");

/* A word that user space may change meanwhile, read once. */
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The ones' complement sum of 16 bytes. */
static __always_inline __u64 sum16(const void *bytes)
{
	const __u32 *words = bytes;

	return (__u64)words[0] + words[1] + words[2] + words[3];
}

/* What a bucket becomes by `copies` now, in `after`; false if they are too many: `Rate::after` of rate.rs. */
static __always_inline bool bucket_after(__u64 full_at, __u64 now, __u64 copy_ns, __u64 burst_ns, __u64 copies, __u64 *after)
{
	__u64 from = full_at > now ? full_at : now;

	*after = from + copy_ns * copies;
	return from == now || *after - now <= burst_ns;
}

/* Takes `copies` from a bucket that other processors take from too, or leaves it alone. A bucket that is changed by others
 * again and again is over its rate anyway. */
static __always_inline bool bucket_take(__u64 *bucket, __u64 now, __u64 copy_ns, __u64 burst_ns, __u64 copies)
{
	__u64 after;

	if (!copy_ns)
		return true;
	for (int tries = 0; tries < 8; tries++) {
		__u64 full_at = READ_ONCE(*bucket);

		if (!bucket_after(full_at, now, copy_ns, burst_ns, copies, &after))
			return false;
		if (__sync_val_compare_and_swap(bucket, full_at, after) == full_at)
			return true;
	}
	return false;
}

/* The two ends of a time in which a program may hold on to regions, lanes and groups. */
static __always_inline struct flight *flight_begin(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct flight *flight = bpf_map_lookup_elem(&flights, &cpu);

	if (flight)
		__sync_fetch_and_add(&flight->steps, 1);
	return flight;
}

static __always_inline void flight_end(struct flight *flight)
{
	__sync_fetch_and_add(&flight->steps, 1);
}

static __always_inline struct counters *counters(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counts, &zero);
}

/* The magic's bytes, as a number. `payload` holds at least as many. */
static __always_inline bool is_control(const __u8 *payload)
{
	__u64 first = 0;

	__builtin_memcpy(&first, payload, REFLECT_MAGIC_BYTES);
	return first == REFLECT_MAGIC;
}

/* True if an address with a port is the reflector's. */
static __always_inline bool is_local(const __u8 *address, __be16 port)
{
	struct local_key key = {};

	__builtin_memcpy(key.address, address, 16);
	key.port = port;
	return bpf_map_lookup_elem(&locals, &key) != 0;
}

/* What to do with a datagram that is payload, for one of the reflector's ports. */
enum verdict {
	PASS_UP, /* Not for a program in the kernel: user space judges it. */
	REFUSE,  /* Drop it; it was counted. */
	COPY,    /* Admitted: copy it. */
	HAND,    /* Admitted, but user space has to copy it. */
};

/* Who sends a datagram, and to which group. */
struct judged {
	struct group *group;
	struct sender *sender;
};

static __always_inline enum verdict judge(struct sender_key *key, __u32 device, __u32 bytes, bool ipv6,
					  struct counters *count, struct judged *judged)
{
	__u32 zero = 0;
	struct sender *sender = bpf_map_lookup_elem(&senders, key);
	struct totals *total = bpf_map_lookup_elem(&totals, &zero);

	if (!total)
		return PASS_UP;
	if (!sender) {
		if (READ_ONCE(total->incomplete))
			return PASS_UP;
		count->strangers++;
		return REFUSE;
	}
	/* Whether an address may come in by another device is a question of routes, which the stack answers. */
	if (sender->device != device)
		return PASS_UP;

	__u32 index = READ_ONCE(sender->group);
	struct group *group = bpf_map_lookup_elem(&groups, &index);

	if (!group)
		return PASS_UP;

	__u32 flags = READ_ONCE(group->flags);

	if (!(flags & REFLECT_GROUP_LIVE))
		return PASS_UP;

	__s64 waiting = READ_ONCE(group->handed) - READ_ONCE(group->finished);

	if (waiting >= (__s64)group->bound || (__s64)(READ_ONCE(total->handed) - READ_ONCE(total->finished)) >= (__s64)READ_ONCE(total->bound)) {
		count->backlog++;
		__sync_fetch_and_add(&group->backlog, 1);
		return REFUSE;
	}

	bool by_address = sender->flags & REFLECT_SENDER_ADDRESS;
	__u64 copy_ns = by_address ? group->address_copy_ns : group->member_copy_ns;
	__u64 burst_ns = by_address ? group->address_burst_ns : group->member_burst_ns;
	__u32 owner = sender->bucket;
	__u64 *bucket = bpf_map_lookup_elem(&buckets, &owner);

	if (!bucket)
		return PASS_UP;

	__u64 price = READ_ONCE(group->members);
	__u64 now = bpf_ktime_get_ns();

	if (price && !(sender->flags & REFLECT_SENDER_ECHO))
		price--;
	if (!bucket_take(bucket, now, copy_ns, burst_ns, price)) {
		count->over_rate++;
		__sync_fetch_and_add(&group->over_rate, 1);
		return REFUSE;
	}
	if (!bucket_take(&group->bucket_ns, now, group->group_copy_ns, group->group_burst_ns, price)) {
		if (copy_ns)
			__sync_fetch_and_add(bucket, -(copy_ns * price));
		count->over_rate++;
		__sync_fetch_and_add(&group->over_rate, 1);
		return REFUSE;
	}
	count->datagrams++;
	count->bytes += bytes;
	__sync_fetch_and_add(&group->datagrams, 1);
	judged->group = group;
	judged->sender = sender;
	return waiting > 0 || READ_ONCE(total->hold) || flags & REFLECT_GROUP_USER || !(flags & REFLECT_GROUP_IPV6) == ipv6 ? HAND : COPY;
}

/* The first lane's region, for the mark of a datagram of which nothing was copied. */
static __always_inline __u64 first_region(struct group *group)
{
	__u32 at = group->lane[0];
	struct lane *lane = bpf_map_lookup_elem(&lanes, &at);

	return lane ? READ_ONCE(lane->region) : 0;
}

/* The mark of a datagram that goes on in user space at a position of a lane, but for its group. */
static __always_inline __u32 mark_of(__u32 lane, __u64 region, __u32 position)
{
	return REFLECT_MARK_HANDED | (lane & REFLECT_MARK_LANE_MASK) << REFLECT_MARK_LANE_SHIFT |
	       (region >> REFLECT_REGION_GENERATION_SHIFT & REFLECT_MARK_GENERATION_MASK) << REFLECT_MARK_GENERATION_SHIFT |
	       (position & REFLECT_MARK_POSITION_MASK);
}

/* A datagram goes to user space with what is left of it to do, in its mark. */
static __always_inline __u32 hand_over(struct group *group, struct counters *count, __u32 lane, __u64 region, __u32 position)
{
	__u32 zero = 0;
	struct totals *total = bpf_map_lookup_elem(&totals, &zero);

	__sync_fetch_and_add(&group->handed, 1);
	if (total)
		__sync_fetch_and_add(&total->handed, 1);
	count->handed++;
	return mark_of(lane, region, position) |
	       (READ_ONCE(group->number) & REFLECT_MARK_GROUP_MASK) << REFLECT_MARK_GROUP_SHIFT;
}

#endif
