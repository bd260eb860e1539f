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
	__uint(map_flags, BPF_F_NO_PREALLOC);
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

/* Datagrams that were admitted and are for user space to copy, or to finish: `struct rescue`, and the payload. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} rescues SEC(".maps");

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
	__u32 index;
	struct group *group;
	struct sender *sender;
};

/* True if a sender's datagrams wait behind others of the group in user space, and are not refused: the group wants every
 * datagram, or they go to several devices, of which one must not hold up the others. */
static __always_inline bool keeps(const struct group *group, const struct sender *sender, __u32 flags)
{
	if (flags & (REFLECT_GROUP_KEEP | REFLECT_GROUP_USER))
		return true;
	if (!(flags & REFLECT_GROUP_PAIR))
		return false;

	__u32 index = group->lane[sender->lane % REFLECT_LANES_MAX];
	struct lane *lane = bpf_map_lookup_elem(&lanes, &index);

	return !lane || READ_ONCE(lane->live) > 1 || sender->flags & REFLECT_SENDER_ECHO;
}

/* True if a datagram is refused, and counted, because too much waits already. While a datagram waits for its device, more are
 * refused here: that is cheap, and lets user space finish it soon. Where that would be wrong they wait behind it, up to a bound. */
static __always_inline bool refuses(struct group *group, const struct sender *sender, __u32 flags, const struct totals *total,
				    __s64 waiting, struct counters *count)
{
	if (!(waiting > 0 && !keeps(group, sender, flags)) && waiting < (__s64)group->bound &&
	    (__s64)(READ_ONCE(total->handed) - READ_ONCE(total->finished)) < (__s64)READ_ONCE(total->bound) &&
	    bpf_ringbuf_query(&rescues, BPF_RB_AVAIL_DATA) <= READ_ONCE(total->rescue_bytes_max))
		return false;
	count->backlog++;
	__sync_fetch_and_add(&group->backlog, 1);
	return true;
}

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
		count->non_members++;
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

	/* Nothing may overtake what sockets hold. */
	if (READ_ONCE(total->hold))
		return PASS_UP;

	__s64 waiting = READ_ONCE(group->handed) - READ_ONCE(group->finished);

	if (refuses(group, sender, flags, total, waiting, count))
		return REFUSE;

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
	judged->index = index;
	judged->group = group;
	judged->sender = sender;
	return waiting > 0 || flags & REFLECT_GROUP_USER || !(flags & REFLECT_GROUP_IPV6) == ipv6 ? HAND : COPY;
}

/* The first lane's region, for a datagram of which nothing was copied. */
static __always_inline __u64 first_region(struct group *group)
{
	__u32 at = group->lane[0];
	struct lane *lane = bpf_map_lookup_elem(&lanes, &at);

	return lane ? READ_ONCE(lane->region) : 0;
}

/* Says in a rescue where user space goes on. */
static __always_inline void go_on_at(struct rescue *rescue, __u32 lane, __u64 region, __u32 position)
{
	rescue->lane = lane;
	rescue->generation = region >> REFLECT_REGION_GENERATION_SHIFT;
	rescue->position = position;
}

/* Counts a datagram that is to be handed over. It is counted before user space can finish it. */
static __always_inline void hand_over(struct group *group, struct counters *count)
{
	__u32 zero = 0;
	struct totals *total = bpf_map_lookup_elem(&totals, &zero);

	__sync_fetch_and_add(&group->handed, 1);
	if (total)
		__sync_fetch_and_add(&total->handed, 1);
	count->handed++;
}

/* Puts a rescue, which was counted, into the ring with the payload behind it. `bytes` is of both. */
static __always_inline void put_rescue(struct rescue *rescue, __u32 bytes, struct group *group, struct counters *count)
{
	__u32 zero = 0;
	struct totals *total = bpf_map_lookup_elem(&totals, &zero);

	if (!bpf_ringbuf_output(&rescues, rescue, bytes, 0))
		return;
	/* The ring had room before the datagram was admitted, so this does not happen; nor may it block the group if it does. */
	__sync_fetch_and_add(&group->handed, -1);
	if (total)
		__sync_fetch_and_add(&total->handed, -1);
	count->handed_lost++;
}

/* The type of service that copies have: the sender's, without the marks of congestion on the way. */
#define TOS_MASK 0xfc

static __always_inline __u8 tos4(const void *ip)
{
	return ((const __u8 *)ip)[1] & TOS_MASK;
}

static __always_inline __u8 tos6(const void *ip)
{
	const __u8 *bytes = ip;

	return (bytes[0] << 4 | bytes[1] >> 4) & TOS_MASK;
}

/* The first word of an IPv6 header: version and type of service, and no flow label. */
static __always_inline __be32 first_word6(__u8 tos)
{
	return bpf_htonl(6u << 28 | (__u32)tos << 20);
}

#endif
