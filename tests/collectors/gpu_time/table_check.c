/* Compares table.c with a plain count, on records at random: of few names and of more than there are rows, at addresses that
 * are used again, with times that are sound, missing and reversed. Prints what differs; 0 where nothing does.
 *   table_check SEEDS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "busy.c"
#include "table.c"

enum { ADDRESSES = 2000, WIDTH = 2100, PASSES = 12, RECORDS = 600, WANTED = 6000, DEVICE_NUMBERS = DEVICES + 2 };

/* What a name should have. */
struct sum {
    uint64_t count, total_ns, delays;
};

static char names[ADDRESSES][WIDTH];
static int named[ADDRESSES]; /* the number of the name that lies there */
static struct sum expected[WANTED][DEVICE_NUMBERS][2];
static uint64_t all, all_ns, bad, launches;

static uint64_t random_below(uint64_t bound) { return (uint64_t)rand() % bound; }

/* Names are told apart by their ends; each hundredth is longer than is kept, and shorter where its number ends. */
static void put_name(int address, int name) {
    int length = name % 100 ? name % 97 : WIDTH - 60;
    named[address] = name;
    snprintf(names[address], 32, "%s%d_", name % 7 ? "k" : "ncclDevKernel", name);
    size_t begun = strlen(names[address]);
    memset(names[address] + begun, 'x', (size_t)length);
    names[address][begun + (size_t)length] = 0;
}

static void add(struct table *table, int wanted) {
    int address = (int)random_below(ADDRESSES < wanted ? ADDRESSES : wanted);
    struct abi_kernel kernel = {.kind = ABI_CONCURRENT_KERNEL, .name = names[address], .context = 1, .grid = (int64_t)++launches};
    kernel.device = (uint32_t)random_below(DEVICE_NUMBERS);
    kernel.graph = random_below(4) == 0;
    kernel.start = random_below(50) ? 10000 + launches * 10 + random_below(100) : 0;
    kernel.end = kernel.start + random_below(1u << random_below(20)) - (random_below(50) ? 0 : 2000);
    kernel.submitted = random_below(2) ? kernel.start - random_below(900) : 0;
    table_add(table, (const struct abi_record *)&kernel);
    if (kernel.start == 0 || kernel.end < kernel.start) {
        bad++;
        return;
    }
    struct sum *sum = &expected[named[address]][kernel.device][kernel.graph];
    sum->count++;
    sum->total_ns += kernel.end - kernel.start;
    sum->delays += kernel.submitted != 0;
    all++;
    all_ns += kernel.end - kernel.start;
}

/* The number in a row's name. */
static int number_in(const char *name) { return atoi(name + strcspn(name, "0123456789")); }

static int wrong_rows(const struct table *table) {
    int wrong = 0;
    uint64_t count = 0, total_ns = 0;
    for (uint32_t at = 0; at < table->header->rows_used; at++) {
        const struct row *row = &table->rows[at];
        uint64_t in_bins = 0;
        for (int bin = 0; bin < BINS; bin++)
            in_bins += row->bins[bin];
        count += row->count;
        total_ns += row->total_ns;
        wrong += in_bins != row->count;
        if (at == 0)
            continue;
        const char *name = table->names + row->name_at;
        const struct sum *sum = &expected[number_in(name)][row->device][row->kind == NODE_ROW];
        /* Once rows are used up, OTHER has no part of a name that has a row: it was there before. */
        wrong += row->count != sum->count || row->total_ns != sum->total_ns || row->delays != sum->delays || strlen(name) >= NAME_BYTES;
    }
    const struct header *header = table->header;
    wrong += count != all || total_ns != all_ns || header->bad_times != bad || header->kernels != all + bad;
    return wrong + (header->without_row != table->rows[0].count) + (header->records != all + bad);
}

static int check(int seed, int wanted) {
    memset(&the_table, 0, sizeof the_table);
    memset(expected, 0, sizeof expected);
    all = all_ns = bad = launches = 0;
    struct table *table = table_make();
    for (int address = 0; address < ADDRESSES; address++)
        put_name(address, address % wanted);
    for (int pass = 0; pass < PASSES; pass++) {
        table_begin(table);
        for (int record = 0; record < RECORDS; record++)
            add(table, wanted);
        table_end(table);
        for (int changed = 0; changed < 20; changed++)
            put_name((int)random_below(ADDRESSES), (int)random_below((uint64_t)wanted));
        if (pass % 4 == 0)
            table_settle_older(table);
    }
    table_settle(table);
    int wrong = wrong_rows(table);
    if (wrong)
        printf("seed %d, %d names: %d wrong of %u rows\n", seed, wanted, wrong, table->header->rows_used);
    munmap(table->header, SEGMENT_BYTES);
    close(table->descriptor);
    return wrong;
}

int main(int count, char **arguments) {
    int wrong = 0, seeds = count > 1 ? atoi(arguments[1]) : 1;
    for (int seed = 0; seed < seeds; seed++) {
        srand((unsigned)seed);
        wrong += check(seed, 40) + check(seed, WANTED);
    }
    return wrong != 0;
}
