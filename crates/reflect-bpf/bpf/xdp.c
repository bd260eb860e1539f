// SPDX-License-Identifier: Apache-2.0
/*
 * The `xdp` plane: copies datagrams in the driver, before the kernel makes packets of them.
 *
 * `reflect_xdp` judges a datagram as every plane does, keeps what it carries, and has it broadcast through a map that has the
 * same device as often as there are copies to make. The kernel clones the frame for each entry and queues the clones for the
 * device, sixteen at a time, on this processor; before a queue is sent `reflect_xdp_egress` sees each clone, in the order of
 * the entries. So each clone is for the next member: a cursor tells, that is kept with the datagram. Which datagram a clone is
 * of stands where its Ethernet destination will. Maps come in some sizes only; the first clones are dropped if they are too
 * many, since the last should not be (`leave`).
 *
 * Nothing is lost after admission. What a device did not take of a queue the kernel drops, and tells at the tracepoint
 * xdp_devmap_xmit right afterwards, on the same processor; `reflect_xdp_sent` knows which copies were in the queue, and hands
 * each datagram among those lost to user space: its payload, and the place where to go on, through a ring that had room for it
 * before it was admitted. From that moment its group has something handed over and not finished, so later datagrams are handed
 * over as they come, and clones of later datagrams that are queued already are refused and handed over as well: nobody gets a
 * later datagram before an earlier one. `reflect_xdp_failed` does the same where the kernel had no memory for a clone.
 *
 * What cannot be copied here but might be elsewhere (members behind several devices, other families, long datagrams, a
 * checksum that is not right) passes, uncounted and uncharged, to the program at the traffic-control hook.
 */
#include "tc.c"
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
_Static_assert(sizeof(struct xdp_rescue) == REFLECT_XDP_RESCUE_BYTES, "as user space has it");

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

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} xdp_rescues SEC(".maps");

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
	struct xdp_rescue rescue;
	__u8 bytes[2560]; /* REFLECT_XDP_BYTES_MAX, and what the verifier cannot know not to be looked at */
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
		hand_over(group, count, 0, 0, 0);
	input->rescue.mark = mark_of(input->lane, input->region, input->stop);

	__u32 bytes = input->rescue.bytes;

	if (bytes <= REFLECT_XDP_BYTES_MAX)
		bpf_ringbuf_output(&xdp_rescues, &input->rescue, sizeof(input->rescue) + bytes, 0);
}

/* What makes a datagram one for this plane. */
struct question {
	struct sender_key key;
	__u8 local[16];
	__be16 local_port;
	__u32 payload;  /* bytes */
	__u32 packet;   /* bytes of IP packet */
	__u32 offset;   /* of the payload */
	bool ipv6;
};

struct answer {
	struct input *input;
	struct lane *lane;
	void *fan;
	__s64 sum; /* of the payload */
};

/* Everything about a datagram that is the same for both families. Returns XDP_REDIRECT if it is to be copied, and otherwise
 * what to return. `check` is the sum of the headers that should come to the checksum with the payload's sum. */
static __always_inline int decide(struct xdp_md *ctx, struct xdp_shared *shared, struct question *question, __u64 pseudo,
				  __u64 ports, __be16 check, struct answer *answer)
{
	struct counters *count = counters();
	struct bulk *bulk = this_bulk();
	__u8 first[8] = {};

	if (!count || !bulk || !is_local(question->local, question->local_port))
		return XDP_PASS;
	if (question->payload >= REFLECT_MAGIC_BYTES) {
		if (bpf_xdp_load_bytes(ctx, question->offset, first, REFLECT_MAGIC_BYTES) || is_control(first))
			return XDP_PASS;
	}

	struct sender *sender = bpf_map_lookup_elem(&senders, &question->key);

	if (!sender || sender->device != ctx->ingress_ifindex)
		return XDP_PASS;

	__u32 index = READ_ONCE(sender->group);
	struct group *group = bpf_map_lookup_elem(&groups, &index);

	if (!group)
		return XDP_PASS;

	__u32 flags = READ_ONCE(group->flags);

	if (!(flags & REFLECT_GROUP_LIVE) || flags & REFLECT_GROUP_USER ||
	    !!(flags & REFLECT_GROUP_IPV6) != question->ipv6)
		return XDP_PASS;

	/* One lane that is not empty: one datagram can be broadcast through one map. */
	struct lane *lane = 0;
	__u64 region = 0;
	__u32 number = 0, lanes_count = READ_ONCE(group->lanes);

	for (__u32 at = 0; at < REFLECT_LANES_MAX; at++) {
		if (at >= lanes_count)
			break;

		__u32 lane_index = group->lane[at];
		struct lane *candidate = bpf_map_lookup_elem(&lanes, &lane_index);

		if (!candidate)
			return XDP_PASS;

		__u64 of = READ_ONCE(candidate->region);

		if (!(of >> REFLECT_REGION_COUNT_SHIFT & REFLECT_REGION_COUNT_MASK))
			continue;
		if (lane)
			return XDP_PASS;
		lane = candidate;
		region = of;
		number = at;
	}
	if (!lane)
		return XDP_PASS;

	__u32 places_count = region >> REFLECT_REGION_COUNT_SHIFT & REFLECT_REGION_COUNT_MASK;
	__u32 slot = device_slot(shared, lane->device);

	if (places_count > REFLECT_XDP_PLACES_MAX || question->packet > lane->mtu || slot >= REFLECT_XDP_DEVICES ||
	    !(shared->device[slot].flags & REFLECT_XDP_DEVICE_COPY))
		return XDP_PASS;

	/* Who leaves becomes a gap before there is one member less: so there may be a clone too many, never one too few. */
	__u32 copies = READ_ONCE(group->members) - !(sender->flags & REFLECT_SENDER_ECHO);

	if (!copies || copies > places_count)
		return XDP_PASS;

	__u32 class = class_of(copies);
	__u32 fan_index = slot * REFLECT_XDP_CLASSES + class;
	void *fan = bpf_map_lookup_elem(&xdp_fans, &fan_index);

	if (!fan)
		return XDP_PASS;

	struct input *input = input_begin(bulk, count);

	if (!input)
		return XDP_PASS;

	__s64 sum = keep(ctx, input, question->offset, question->payload);

	if (sum < 0)
		return XDP_PASS;
	/* The whole sum, or that of the pseudo-header alone, which a sender on this machine leaves to a device; or none. */
	if (check || question->ipv6) {
		if (fold(sum + pseudo + ports + check) != 0xffff && fold(pseudo) != check)
			return XDP_PASS;
	}

	if (bpf_ringbuf_query(&xdp_rescues, BPF_RB_AVAIL_DATA) > shared->rescue_bytes_max) {
		count->backlog++;
		return XDP_DROP;
	}

	struct judged judged;

	switch (judge(&question->key, ctx->ingress_ifindex, question->payload, question->ipv6, count, &judged)) {
	case PASS_UP:
		return XDP_PASS;
	case REFUSE:
		return XDP_DROP;
	case COPY:
	case HAND:
		break;
	}

	/* A rewritten lane shows its new region; what was looked at before is still there. */
	input->number = bulk->next++;
	input->flags = (question->ipv6 ? INPUT_IPV6 : 0) |
		       (judged.sender->flags & REFLECT_SENDER_ECHO ? INPUT_NO_EXCEPT : 0);
	input->group = index;
	input->lane = number;
	input->region = region;
	input->seen = 0;
	input->clones = class_places(class);
	input->copies = copies;
	input->first = input->clones - copies;
	input->cursor = region;
	input->end = input->cursor + places_count;
	input->stop = 0;
	input->told = 0;
	input->except_port = question->key.port;
	__builtin_memcpy(input->except, question->key.address, 16);
	input->rescue.group = index;
	input->rescue.device = ctx->ingress_ifindex;
	input->rescue.bytes = question->payload;
	input->rescue.except_port = question->key.port;
	input->rescue.no_except = !!(input->flags & INPUT_NO_EXCEPT);
	__builtin_memcpy(input->rescue.except, question->key.address, 16);

	/* It stays behind what waits in user space. */
	if (READ_ONCE(group->handed) != READ_ONCE(group->finished)) {
		tell(input, group, count);
		return XDP_DROP;
	}
	answer->input = input;
	answer->lane = lane;
	answer->fan = fan;
	answer->sum = sum;
	return XDP_REDIRECT;
}

static __always_inline int xdp4(struct xdp_md *ctx, struct xdp_shared *shared)
{
	struct frame4 *packet = FRAME(struct frame4, ctx);

	if (!packet)
		return XDP_PASS;

	__u32 length = bpf_ntohs(packet->ip.tot_len);
	__u32 frame = (long)ctx->data_end - (long)ctx->data;
	const __u32 *words = (const void *)&packet->ip;

	if (packet->ip.version != 4 || packet->ip.ihl != 5 || packet->ip.protocol != IPPROTO_UDP ||
	    packet->ip.frag_off & bpf_htons(0x3fff) || length < sizeof(packet->ip) + sizeof(packet->udp) ||
	    bpf_ntohs(packet->udp.len) != length - sizeof(packet->ip) || length + ETH_HLEN > frame ||
	    (length + ETH_HLEN != frame && frame > ETH_ZLEN))
		return XDP_PASS;
	if (fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
		return XDP_PASS;

	struct question question = {
		.local_port = packet->udp.dest,
		.payload = length - sizeof(packet->ip) - sizeof(packet->udp),
		.packet = length,
		.offset = sizeof(*packet),
	};
	struct answer answer;
	__be16 check = packet->udp.check;
	__u64 pseudo = (__u64)packet->ip.saddr + packet->ip.daddr + bpf_htons(IPPROTO_UDP) + packet->udp.len;
	__u64 ports = (__u64)packet->udp.source + packet->udp.dest + packet->udp.len;

	question.key.port = packet->udp.source;
	question.key.local_port = packet->udp.dest;
	question.key.address[10] = question.key.address[11] = 0xff;
	__builtin_memcpy(question.key.address + 12, &packet->ip.saddr, 4);
	question.local[10] = question.local[11] = 0xff;
	__builtin_memcpy(question.local + 12, &packet->ip.daddr, 4);

	int action = decide(ctx, shared, &question, pseudo, ports, check, &answer);

	if (action != XDP_REDIRECT)
		return action;

	struct input *input = answer.input;
	struct lane *lane = answer.lane;

	packet = FRAME(struct frame4, ctx);
	if (!packet)
		return XDP_DROP;
	tag(&packet->ethernet, input->number);
	__builtin_memcpy(packet->ethernet.h_source, lane->mac, 6);
	packet->ip.ttl = REFLECT_TTL;
	packet->ip.tos = 0;
	packet->ip.saddr = *(__be32 *)(lane->address + 12);
	packet->udp.source = lane->port;
	words = (const void *)&packet->ip;
	input->ip_sum = fold((__u64)words[0] + words[1] + (words[2] & bpf_htonl(0xffff0000)) + words[3]);
	input->sum = fold(answer.sum + lane->sum + bpf_htons(IPPROTO_UDP) + lane->port + 2 * (__u64)packet->udp.len);
	return bpf_redirect_map(answer.fan, 0, BPF_F_BROADCAST);
}

static __always_inline int xdp6(struct xdp_md *ctx, struct xdp_shared *shared)
{
	struct frame6 *packet = FRAME(struct frame6, ctx);

	if (!packet)
		return XDP_PASS;

	__u32 length = bpf_ntohs(packet->ip.payload_len);
	__u32 frame = (long)ctx->data_end - (long)ctx->data;
	__u32 whole = length + sizeof(packet->ethernet) + sizeof(packet->ip);

	if (packet->ip.version != 6 || packet->ip.nexthdr != IPPROTO_UDP || length < sizeof(packet->udp) ||
	    bpf_ntohs(packet->udp.len) != length || whole > frame || (whole != frame && frame > ETH_ZLEN))
		return XDP_PASS;

	struct question question = {
		.local_port = packet->udp.dest,
		.payload = length - sizeof(packet->udp),
		.packet = length + sizeof(packet->ip),
		.offset = sizeof(*packet),
		.ipv6 = true,
	};
	struct answer answer;
	__be16 check = packet->udp.check;
	__u64 pseudo = sum16(&packet->ip.saddr) + sum16(&packet->ip.daddr) + bpf_htons(IPPROTO_UDP) + packet->udp.len;
	__u64 ports = (__u64)packet->udp.source + packet->udp.dest + packet->udp.len;

	question.key.port = packet->udp.source;
	question.key.local_port = packet->udp.dest;
	__builtin_memcpy(question.key.address, &packet->ip.saddr, 16);
	__builtin_memcpy(question.local, &packet->ip.daddr, 16);
	/* A link-local address means a member only together with its device. */
	if ((question.key.address[0] == 0xfe && (question.key.address[1] & 0xc0) == 0x80))
		question.key.device = ctx->ingress_ifindex;

	int action = decide(ctx, shared, &question, pseudo, ports, check, &answer);

	if (action != XDP_REDIRECT)
		return action;

	struct input *input = answer.input;
	struct lane *lane = answer.lane;

	packet = FRAME(struct frame6, ctx);
	if (!packet)
		return XDP_DROP;
	tag(&packet->ethernet, input->number);
	__builtin_memcpy(packet->ethernet.h_source, lane->mac, 6);
	*(__be32 *)((__u8 *)packet + ETH_HLEN) = bpf_htonl(6u << 28);
	packet->ip.hop_limit = REFLECT_TTL;
	__builtin_memcpy(&packet->ip.saddr, lane->address, 16);
	packet->udp.source = lane->port;
	input->sum = fold(answer.sum + lane->sum + bpf_htons(IPPROTO_UDP) + lane->port + 2 * (__u64)packet->udp.len);
	return bpf_redirect_map(answer.fan, 0, BPF_F_BROADCAST);
}

SEC("xdp")
int reflect_xdp(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = FRAME(struct ethhdr, ctx);
	__u32 zero = 0;
	struct xdp_shared *shared = bpf_map_lookup_elem(&xdp_shared, &zero);

	if (!ethernet || !shared)
		return XDP_PASS;

	__u32 slot = device_slot(shared, ctx->ingress_ifindex);
	__be16 type = ethernet->h_proto;

	/* Frames for other hosts are seen here, too. */
	if (slot >= REFLECT_XDP_DEVICES || !same_mac(ethernet->h_dest, shared->device[slot].mac))
		return XDP_PASS;
	if (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6))
		return XDP_PASS;

	struct flight *flight = flight_begin();

	if (!flight)
		return XDP_PASS;

	int action = type == bpf_htons(ETH_P_IP) ? xdp4(ctx, shared) : xdp6(ctx, shared);

	flight_end(flight);
	return action;
}

/* Copies for user space: the frame, behind an `xdp_job`, is given to this program by a test run with live frames. All headers
 * but what the egress program writes are there already, with the sum of the UDP checksum in its field. */
SEC("xdp")
int reflect_xdp_job(struct xdp_md *ctx)
{
	struct xdp_job *job = FRAME(struct xdp_job, ctx);
	struct bulk *bulk = this_bulk();
	struct counters *count = counters();
	__u32 zero = 0;
	struct xdp_shared *shared = bpf_map_lookup_elem(&xdp_shared, &zero);
	struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

	if (!job || !bulk || !count || !shared || !outcome)
		return XDP_DROP;

	__u32 slot = device_slot(shared, job->device);

	if (slot >= REFLECT_XDP_DEVICES || job->copies >= REFLECT_XDP_PLACES_MAX - 64)
		return XDP_DROP;

	/* The frame itself goes to the last entry, and is dropped there: a test run keeps what it needs for a second when its
	 * frames are still under way at its end. So that the last queue has something in it for the device all the same, it is
	 * not to begin with the last entry. */
	__u32 class = class_of(job->copies + 1);

	if (class_places(class) % BULK == 1)
		class++;

	__u32 fan_index = slot * REFLECT_XDP_CLASSES + class;
	void *fan = bpf_map_lookup_elem(&xdp_fans, &fan_index);
	struct input *input = fan ? input_begin(bulk, count) : 0;

	if (!input)
		return XDP_DROP;
	input->number = bulk->next++;
	input->flags = INPUT_JOB | (job->quiet ? INPUT_QUIET : 0) | (job->no_except ? INPUT_NO_EXCEPT : 0);
	input->region = job->base;
	input->seen = 0;
	input->clones = class_places(class);
	input->copies = job->copies;
	input->first = input->clones - job->copies - 1;
	input->cursor = job->base;
	input->end = input->cursor + job->count;
	input->stop = 0;
	input->told = 0;
	input->except_port = job->except_port;
	__builtin_memcpy(input->except, job->except, 16);
	outcome->number = job->number;
	outcome->seen = outcome->copies = outcome->stop = outcome->stopped = outcome->bells = 0;
	if (bpf_xdp_adjust_head(ctx, sizeof(*job)))
		return XDP_DROP;

	struct frame4 *packet = FRAME(struct frame4, ctx);

	if (!packet)
		return XDP_DROP;
	tag(&packet->ethernet, input->number);
	if (packet->ethernet.h_proto == bpf_htons(ETH_P_IPV6)) {
		struct frame6 *packet6 = FRAME(struct frame6, ctx);

		if (!packet6)
			return XDP_DROP;
		input->flags |= INPUT_IPV6;
		input->sum = packet6->udp.check;
	} else {
		const __u32 *words = (const void *)&packet->ip;

		input->sum = packet->udp.check;
		input->ip_sum = fold((__u64)words[0] + words[1] + (words[2] & bpf_htonl(0xffff0000)) + words[3]);
	}
	return bpf_redirect_map(fan, 0, BPF_F_BROADCAST);
}

/* Keeps in mind what was done with a clone until its queue has been sent. */
static __always_inline void note(struct bulk *bulk, __u32 slot, __u32 what, __u32 place)
{
	__u32 at = bulk->logged;

	if (at >= BULK)
		return;
	if (what != LOG_PASSED || (at && bulk->log[0].slot != slot))
		bulk->odd = 1;
	*(__u64 *)&bulk->log[at] = ((union entry_word){.entry = {.slot = slot, .what = what, .place = place}}).word;
	bulk->logged = at + 1;
}

/* A clone that is not for anybody. The kernel tells a driver to look at its queue only with the last frames for it: were all
 * of those dropped here, those before would lie there until something else comes. So the last clone becomes a frame that
 * nobody takes, from the device to itself, unless a copy is in the same queue. */
static __always_inline int leave(struct xdp_md *ctx, struct bulk *bulk, struct input *input, __u32 slot, __u32 clone)
{
	if (clone + 1 != input->clones || bulk->passed || input->flags & INPUT_QUIET)
		return XDP_DROP;

	struct frame4 *packet = FRAME(struct frame4, ctx);

	if (!packet)
		return XDP_DROP;
	__builtin_memcpy(packet->ethernet.h_dest, packet->ethernet.h_source, 6);
	packet->ethernet.h_proto = bpf_htons(REFLECT_XDP_BELL);
	__builtin_memset(&packet->ip, 0, sizeof(*packet) - sizeof(packet->ethernet));
	bpf_xdp_adjust_tail(ctx, (int)sizeof(*packet) - (int)(ctx->data_end - ctx->data));
	bulk->passed++;
	note(bulk, slot, LOG_BELL, 0);
	return XDP_PASS;
}

/* The next place that is somebody's who gets a copy; none if there is no more. */
static __always_inline struct place *next_place(struct input *input)
{
	__u32 end = input->end;

	for (__u32 tries = 0; tries < REFLECT_XDP_PLACES_MAX; tries++) {
		__u32 at = input->cursor;

		if (at >= end)
			return 0;

		struct place *place = bpf_map_lookup_elem(&places, &at);

		if (!place)
			return 0;
		input->cursor = at + 1;
		if (!(READ_ONCE(place->hop) >> 48 & REFLECT_PLACE_LIVE))
			continue;
		if (place->port != input->except_port || input->flags & INPUT_NO_EXCEPT ||
		    ((__u64 *)place->address)[0] != ((__u64 *)input->except)[0] ||
		    ((__u64 *)place->address)[1] != ((__u64 *)input->except)[1])
			return place;
	}
	return 0;
}

/* The sum of three 16-bit words at most, as it stands in a header. */
static __always_inline __u16 complement(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

SEC("xdp/devmap")
int reflect_xdp_egress(struct xdp_md *ctx)
{
	struct frame4 *packet = FRAME(struct frame4, ctx);
	struct bulk *bulk = this_bulk();

	if (!packet || !bulk)
		return XDP_DROP;

	__u32 number = *(__u32 *)packet->ethernet.h_dest;
	__u32 slot = number % REFLECT_XDP_INPUTS;
	struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

	if (!input || input->number != number || *(__u16 *)(packet->ethernet.h_dest + 4) != (__u16)~number)
		return XDP_DROP;

	__u32 clone = input->seen++;
	__u32 flags = input->flags;

	if (flags & INPUT_JOB) {
		__u32 zero = 0;
		struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

		if (outcome)
			outcome->seen = input->seen;
	}
	if (flags & INPUT_REFUSED || clone - input->first >= input->copies)
		return leave(ctx, bulk, input, slot, clone);

	struct place *place = next_place(input);

	if (!place)
		return leave(ctx, bulk, input, slot, clone);
	if (!(flags & INPUT_JOB)) {
		struct group *group = bpf_map_lookup_elem(&groups, &input->group);

		if (!group)
			return XDP_DROP;
		/* Something of the group waits in user space, and this would overtake it. */
		if (READ_ONCE(group->handed) != READ_ONCE(group->finished)) {
			struct counters *count = counters();

			if (!count)
				return XDP_DROP;
			input->flags = flags | INPUT_REFUSED | INPUT_COUNTED;
			hand_over(group, count, 0, 0, 0);
			note(bulk, slot, LOG_REFUSED, input->cursor - 1);
			return leave(ctx, bulk, input, slot, clone);
		}
	}

	__u64 hop = READ_ONCE(place->hop);
	__be16 port = place->port;
	__u16 address_sum = place->sum;
	__u16 check = complement(input->sum + address_sum + port);

	if (!check)
		check = 0xffff;
	*(__u32 *)packet->ethernet.h_dest = hop;
	*(__u16 *)(packet->ethernet.h_dest + 4) = hop >> 32;
	if (flags & INPUT_IPV6) {
		struct frame6 *packet6 = FRAME(struct frame6, ctx);

		if (!packet6)
			return XDP_DROP;
		__builtin_memcpy(&packet6->ip.daddr, place->address, 16);
		packet6->udp.dest = port;
		packet6->udp.check = check;
	} else {
		packet->ip.daddr = *(__be32 *)(place->address + 12);
		packet->ip.check = complement(input->ip_sum + address_sum);
		packet->udp.dest = port;
		packet->udp.check = check;
	}
	bulk->passed++;
	note(bulk, slot, LOG_PASSED, input->cursor - 1);
	return XDP_PASS;
}

/* Counts copies of an input that a device took. */
static __always_inline void took(struct input *input, struct counters *count, __u32 copies)
{
	__u32 zero = 0;

	if (input->flags & INPUT_JOB) {
		struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

		if (outcome)
			outcome->copies += copies;
		return;
	}

	struct group *group = bpf_map_lookup_elem(&groups, &input->group);

	count->copies += copies;
	if (group)
		__sync_fetch_and_add(&group->copies, copies);
}

/* Tells a job that its bell was taken. */
static __always_inline void bell_rang(void)
{
	__u32 zero = 0;
	struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

	if (outcome)
		outcome->bells++;
}

/* A queue was given to a device, which took the first `sent` of what the egress program let through. */
SEC("tp_btf/xdp_devmap_xmit")
int reflect_xdp_sent(__u64 *arguments)
{
	int sent = arguments[2];
	struct bulk *bulk = this_bulk();
	struct counters *count = counters();

	if (!bulk || !count || !bulk->logged)
		return 0;

	__u32 logged = bulk->logged, passed = bulk->passed, odd = bulk->odd;

	bulk->logged = bulk->passed = bulk->odd = 0;
	if (sent < 0)
		sent = 0;
	if (!odd && passed == (__u32)sent) {
		__u32 slot = bulk->log[0].slot;
		struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

		if (input)
			took(input, count, passed);
		return 0;
	}

	__u32 before = 0;

	for (__u32 at = 0; at < BULK; at++) {
		if (at >= logged)
			break;

		struct entry entry = bulk->log[at];
		__u32 slot = entry.slot;
		struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

		if (!input)
			continue;
		if (entry.what != LOG_REFUSED && before++ < (__u32)sent) {
			if (entry.what == LOG_PASSED)
				took(input, count, 1);
			else if (input->flags & INPUT_JOB)
				bell_rang();
			continue;
		}
		if (entry.what == LOG_BELL || input->told)
			continue;

		struct group *group = bpf_map_lookup_elem(&groups, &input->group);

		if (!group)
			continue;
		input->stop = entry.place - (__u32)input->region;
		tell(input, group, count);
	}
	return 0;
}

/* The kernel could not broadcast the last input of this processor to the end: it had no memory for a clone. Clones that wait
 * in a queue are refused by the egress program, as those that it has not seen go to user space now. */
SEC("tp_btf/xdp_redirect_err")
int reflect_xdp_failed(__u64 *arguments)
{
	(void)arguments;
	struct bulk *bulk = this_bulk();
	struct counters *count = counters();

	if (!bulk || !count)
		return 0;

	__u32 slot = (bulk->next - 1) % REFLECT_XDP_INPUTS;
	struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

	if (!input || input->told || input->seen >= input->clones || !input->clones)
		return 0;

	struct group *group = bpf_map_lookup_elem(&groups, &input->group);

	if (!group)
		return 0;
	input->stop = input->cursor - (__u32)input->region;
	tell(input, group, count);
	return 0;
}
