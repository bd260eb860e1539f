// SPDX-License-Identifier: Apache-2.0
/*
 * For the study of the reflector: counts datagrams at the receivers' end and drops them, so that a receiver costs as
 * little as one can, and the same whatever made the copy.
 *
 * A counted datagram is IPv4 or IPv6 without options, UDP, and its payload begins with MAGIC, the number of its sender and
 * a number that the sender counts up. The receiver's number is in the last two bytes of its address, plus FIRST.
 * Everything else (the questions for a neighbour's address, above all) passes.
 *
 * Two more count where a copy is not the receivers' affair yet, so that there are no receivers at all, and one drops what
 * comes in, so that there is no reflector.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAGIC 0x4e42454e
#define FIRST 0x8000
#define RECEIVERS 4096
#define SENDERS 8
#define CPUS 256

struct mark {
	__u32 magic;
	__u32 sender;
	__u64 number;
};

/* What one receiver got from one sender. Only copies of one sender's datagrams to one receiver meet here, and these
 * come one after the other, so nothing is counted atomically. */
struct seat {
	__u64 copies;
	__u64 next;    /* one past the greatest number seen */
	__u64 gaps;    /* numbers passed over */
	__u64 disorder; /* numbers not greater than the last one */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RECEIVERS * SENDERS);
	__type(key, __u32);
	__type(value, struct seat);
} seats SEC(".maps");

/* One line of the cache for each processor: whoever waits for copies looks here. */
struct total {
	__u64 copies;
	__u64 bytes;
	__u64 strange; /* UDP for a receiver, without the magic */
	__u64 dropped; /* by the program that only drops */
	__u64 rest[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, struct total);
} totals SEC(".maps");

/* The UDP header, or nothing. */
static __always_inline struct udphdr *udp_of(void *data, void *end, __u32 *receiver)
{
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return 0;
		*receiver = (bpf_ntohl(ip->daddr) & 0xffff) - FIRST;
		return (void *)(ip + 1);
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
			return 0;
		*receiver = bpf_ntohs(ip->daddr.in6_u.u6_addr16[7]) - FIRST;
		return (void *)(ip + 1);
	}
	return 0;
}

static __always_inline struct total *total_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&totals, &cpu);
}

/* True if it is a datagram to be counted, and to be dropped then. */
static __always_inline int counted(void *data, void *end)
{
	__u32 receiver = 0;
	struct udphdr *udp = udp_of(data, end, &receiver);
	struct total *total;
	struct mark *mark;
	struct seat *seat;
	__u32 index;

	if (!udp)
		return 0;
	mark = (void *)(udp + 1);
	total = total_here();
	if (!total)
		return 0;
	if ((void *)(mark + 1) > end || mark->magic != MAGIC || mark->sender >= SENDERS || receiver >= RECEIVERS) {
		total->strange++;
		return 0;
	}
	index = receiver * SENDERS + mark->sender;
	seat = bpf_map_lookup_elem(&seats, &index);
	if (!seat)
		return 0;
	seat->copies++;
	if (mark->number >= seat->next) {
		seat->gaps += mark->number - seat->next;
		seat->next = mark->number + 1;
	} else {
		seat->disorder++;
	}
	total->copies++;
	total->bytes += bpf_ntohs(udp->len) - sizeof(*udp);
	return 1;
}

SEC("classifier")
int count(struct __sk_buff *skb)
{
	return counted((void *)(long)skb->data, (void *)(long)skb->data_end) ? TC_ACT_SHOT : TC_ACT_OK;
}

/* At the egress hook of the reflector's device: copies are counted there, and taken as if the device had sent them. A
 * program attached the newer way could only drop them, and whoever sent them would be told. */
SEC("classifier")
int take(struct __sk_buff *skb)
{
	return counted((void *)(long)skb->data, (void *)(long)skb->data_end) ? TC_ACT_STOLEN : TC_ACT_OK;
}

SEC("classifier")
int drop(struct __sk_buff *skb)
{
	struct total *total;
	__u32 receiver;

	if (!udp_of((void *)(long)skb->data, (void *)(long)skb->data_end, &receiver))
		return TC_ACT_OK;
	total = total_here();
	if (total)
		total->dropped++;
	return TC_ACT_SHOT;
}

/* In the driver of the receivers' device, for frames that came from a driver: they are counted, and gone, before the
 * network's stack makes buffers of them. */
SEC("xdp")
int take_frame(struct xdp_md *xdp)
{
	return counted((void *)(long)xdp->data, (void *)(long)xdp->data_end) ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Apache-2.0";
