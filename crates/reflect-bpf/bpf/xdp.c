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
#include "xdp_egress.h"
#include "xdp_input.h"

/* What makes a datagram one for this plane. */
struct question {
	struct sender_key key;
	__u8 local[16];
	__be16 local_port;
	__u32 payload;  /* bytes */
	__u32 packet;   /* bytes of IP packet */
	__u8 tos;       /* of copies */
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

	/* One lane with receivers: one datagram can be broadcast through one map. Its sender is no receiver. */
	bool echo = sender->flags & REFLECT_SENDER_ECHO;
	__u32 copies = 0;
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

		/* Who joins is counted before the region tells of it, and who leaves becomes a gap before it is not counted any more:
		 * so there may be a clone too many, never one too few. */
		__u64 of = READ_ONCE(candidate->region);
		__u32 receivers = READ_ONCE(candidate->live);

		if (!echo && sender->lane == at)
			receivers -= !!receivers;
		if (!receivers)
			continue;
		copies = receivers;
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

	if (copies > places_count || copies < READ_ONCE(shared->copies_min))
		return XDP_PASS;

	__u32 class = class_of(copies);
	__u32 fan_index = slot * REFLECT_XDP_CLASSES + class;
	void *fan = bpf_map_lookup_elem(&xdp_fans, &fan_index);

	if (!fan)
		return XDP_PASS;

	/* Nothing is done with what is refused: most of what comes under overload is. */
	__u32 zero = 0;
	struct totals *total = bpf_map_lookup_elem(&totals, &zero);
	__s64 waiting = READ_ONCE(group->handed) - READ_ONCE(group->finished);

	if (!total)
		return XDP_PASS;
	if (!READ_ONCE(total->hold) && refuses(group, sender, flags, total, waiting, count))
		return XDP_DROP;

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
	input->rescue.tos = question->tos;
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

	question.tos = tos4((void *)packet + ETH_HLEN);
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
	packet->ip.tos = question.tos;
	packet->ip.frag_off = bpf_htons(0x4000);
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

	question.tos = tos6((void *)packet + ETH_HLEN);
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
	*(__be32 *)((__u8 *)packet + ETH_HLEN) = first_word6(question.tos);
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
