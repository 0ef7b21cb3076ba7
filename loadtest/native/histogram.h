/* A histogram of latencies: exact below 256 ns, within 1/128 of the value above, and the largest exactly.
 *
 * Slots are linear within each power of two, so that recording is a shift and an addition and the size never
 * depends on the values. A percentile is the upper edge of its slot, so it is never too low.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define SLOT_BITS 7
#define SLOT_COUNT (58 << SLOT_BITS)

struct histogram {
    uint64_t counts[SLOT_COUNT];
    uint64_t count, largest;
    double sum;
};

static unsigned slot_of(uint64_t value)
{
    if (value < (2 << SLOT_BITS))
        return (unsigned)value;
    unsigned shift = 63 - (unsigned)__builtin_clzll(value) - SLOT_BITS;
    return (shift << SLOT_BITS) + (unsigned)(value >> shift);
}

static uint64_t slot_edge(unsigned slot)
{
    if (slot < (2 << SLOT_BITS))
        return slot;
    unsigned shift = (slot >> SLOT_BITS) - 1;
    uint64_t leading = (slot & ((1 << SLOT_BITS) - 1)) + (1 << SLOT_BITS);
    return ((leading + 1) << shift) - 1;
}

static void histogram_add(struct histogram *h, uint64_t value)
{
    h->counts[slot_of(value)]++;
    h->count++;
    h->sum += (double)value;
    if (value > h->largest)
        h->largest = value;
}

static uint64_t percentile(const struct histogram *h, double share)
{
    uint64_t rank = (uint64_t)ceil(share * (double)h->count), passed = 0;
    for (unsigned slot = 0; slot < SLOT_COUNT && rank; slot++) {
        passed += h->counts[slot];
        if (passed >= rank)
            return slot_edge(slot) < h->largest ? slot_edge(slot) : h->largest;
    }
    return h->largest;
}

/* Print one JSON object, in microseconds. */
static void histogram_print(const struct histogram *h, FILE *out)
{
    fprintf(out,
            "{\"count\":%llu,\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"p99_9\":%.3f,\"max\":%.3f}",
            (unsigned long long)h->count, h->count ? h->sum / (double)h->count / 1e3 : 0.0,
            (double)percentile(h, 0.5) / 1e3, (double)percentile(h, 0.9) / 1e3,
            (double)percentile(h, 0.99) / 1e3, (double)percentile(h, 0.999) / 1e3, (double)h->largest / 1e3);
}
