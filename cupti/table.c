#define _GNU_SOURCE
#include "table.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "busy.h"
#include "descriptor.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { SLOTS = 2 * ROWS, POINTERS = 1024, CONTEXTS = 64 };

/* The newest launch of a context that was recorded. */
struct context {
    uint32_t device, context;
    int64_t newest;
};

/* A name's address in CUPTI's memory and the row it led to last. Addresses are reused: in each pass over a buffer what lies
 * there is compared with the row's own name once. */
struct pointer {
    const char *name;
    uint64_t pass;
    uint32_t row;
    uint16_t device;
    uint8_t kind;
};

struct table {
    int descriptor;
    struct file file; /* behind it */
    struct header *header;
    struct row *rows;
    char *names;
    struct pointer pointers[POINTERS];
    uint64_t pass;
    bool collective[ROWS];
    uint32_t slots[SLOTS]; /* open addressing: 0 is empty, else the row */
    struct busy busy[DEVICES];
    struct context contexts[CONTEXTS];
    uint32_t contexts_used;
    uint32_t devices; /* a bit for each that was seen */
    uint64_t longest_ns;
    struct signs signs;
};

static struct table the_table;

/* Whether files may be as large: making a larger one ends the process by a signal. */
static bool may_be_made(void) {
    struct rlimit most;
    return getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur >= SEGMENT_BYTES;
}

static char *shared(int *descriptor) {
    int fd = may_be_made() ? above_standard(memfd_create("pointillist-gpu-time", MFD_CLOEXEC | MFD_ALLOW_SEALING)) : -1;
    if (fd < 0)
        return NULL;
    void *memory = MAP_FAILED;
    /* All of it is taken now: a page that the system refuses later would end the process by a signal. */
    if (syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)SEGMENT_BYTES) == 0)
        memory = mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        close(fd);
        return NULL;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE); /* Linux 5.1: where it is unknown the agent could write, and does not */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL);
    *descriptor = fd;
    return memory;
}

/* Have the table in new memory. */
static bool lay(struct table *table) {
    char *memory = shared(&table->descriptor);
    if (memory == NULL)
        return false;
    table->file = file_of(table->descriptor);
    table->header = (struct header *)memory;
    table->rows = (struct row *)(memory + ROWS_AT);
    table->names = memory + NAMES_AT;
    return true;
}

struct table *table_make(void) {
    struct table *table = &the_table;
    if (!lay(table))
        return NULL;
    *table->header = (struct header){
        .magic = LAYOUT_MAGIC, .version = LAYOUT_VERSION, .bytes = SEGMENT_BYTES,
        .rows = ROWS, .row_bytes = sizeof(struct row), .devices = DEVICES, .device_bytes = sizeof(struct device_time),
        .names_at = NAMES_AT, .names_bytes = NAMES_BYTES, .rows_used = 1, .pid = getpid(),
    };
    table->rows[0].name_at = NO_NAME;
    table->rows[0].kind = OTHER_ROW;
    return table;
}

int table_descriptor(struct table *table) {
    if (still_is(table->descriptor, table->file))
        return table->descriptor;
    char *old = (char *)table->header;
    if (!lay(table))
        return -1;
    memcpy(table->header, old, HEADER_BYTES);
    memcpy(table->rows, old + ROWS_AT, table->header->rows_used * sizeof *table->rows);
    memcpy(table->names, old + NAMES_AT, table->header->names_used);
    munmap(old, SEGMENT_BYTES);
    return table->descriptor;
}

void table_forget_numbers(struct table *table) { table->contexts_used = 0; }

struct header *table_header(struct table *table) { return table->header; }

static void next_generation(struct table *table) {
    _Atomic uint64_t *generation = (_Atomic uint64_t *)&table->header->generation;
    atomic_store_explicit(generation, table->header->generation + 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

void table_begin(struct table *table) {
    next_generation(table);
    table->pass++;
}

void table_end(struct table *table) { next_generation(table); }

static uint64_t hash_of(const char *name, size_t length, uint32_t device, uint32_t kind) {
    uint64_t hash = 0x9e3779b97f4a7c15u ^ ((uint64_t)device << 8) ^ kind ^ ((uint64_t)length << 32);
    for (; length >= 8; name += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, name, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 29;
    }
    uint64_t word = 0;
    memcpy(&word, name, length);
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

static bool is_row(const struct table *table, uint32_t at, const char *name, size_t length, uint32_t device, uint32_t kind) {
    const struct row *row = &table->rows[at];
    if (row->device != device || row->kind != kind)
        return false;
    const char *own = table->names + row->name_at;
    return strncmp(own, name, length) == 0 && own[length] == 0;
}

/* NCCL's and RCCL's kernels; other collectives count as computation here, and as their family in the mix. */
static bool collective(const char *name) {
    return strncmp(name, "nccl", 4) == 0 || strstr(name, "ncclDevKernel") != NULL;
}

/* A new row for this name, or OTHER when rows or names are used up. */
static uint32_t new_row(struct table *table, const char *name, size_t length, uint32_t device, uint32_t kind) {
    struct header *header = table->header;
    if (header->rows_used == ROWS || header->names_used + length + 1 > NAMES_BYTES)
        return 0;
    uint32_t at = header->rows_used++;
    struct row *row = &table->rows[at];
    row->name_at = header->names_used;
    row->device = (uint16_t)device;
    row->kind = (uint8_t)kind;
    table->collective[at] = collective(name);
    memcpy(table->names + row->name_at, name, length);
    table->names[row->name_at + length] = 0;
    header->names_used += (uint32_t)length + 1;
    return at;
}

static uint32_t find_row(struct table *table, const char *name, uint32_t device, uint32_t kind) {
    size_t length = strnlen(name, NAME_BYTES - 1);
    uint64_t slot = hash_of(name, length, device, kind) % SLOTS;
    for (; table->slots[slot] != 0; slot = (slot + 1) % SLOTS)
        if (is_row(table, table->slots[slot], name, length, device, kind))
            return table->slots[slot];
    uint32_t at = new_row(table, name, length, device, kind);
    if (at != 0)
        table->slots[slot] = at;
    return at;
}

static uint32_t row_of(struct table *table, const char *name, uint32_t device, uint32_t kind) {
    if (name == NULL)
        name = "";
    struct pointer *known = &table->pointers[((uintptr_t)name >> 4 ^ device) % POINTERS];
    bool same = known->name == name && known->device == device && known->kind == kind;
    if (same && known->pass == table->pass)
        return known->row;
    if (!same || known->row == 0 || strncmp(table->names + table->rows[known->row].name_at, name, NAME_BYTES - 1) != 0)
        *known = (struct pointer){.name = name, .row = find_row(table, name, device, kind), .device = (uint16_t)device, .kind = (uint8_t)kind};
    known->pass = table->pass;
    return known->row;
}

static int bin_of(uint64_t ns) {
    int bin = ns == 0 ? 0 : 63 - __builtin_clzll(ns);
    return bin < BINS ? bin : BINS - 1;
}

static struct row *count(struct table *table, uint32_t at, uint64_t ns, uint64_t bytes) {
    struct row *row = &table->rows[at];
    table->header->without_row += at == 0;
    row->count++;
    row->total_ns += ns;
    row->bytes += bytes;
    row->bins[bin_of(ns)]++;
    if (ns > row->longest_ns)
        row->longest_ns = ns;
    return row;
}

/* Whether a record can be counted: its times stand in their order. */
static bool timed(struct table *table, uint64_t start, uint64_t end) {
    bool good = start != 0 && end >= start;
    table->header->bad_times += !good;
    return good;
}

static void beside(struct table *table, uint32_t device, uint64_t start, uint64_t end, enum busy_class class) {
    if (device >= DEVICES)
        return;
    table->devices |= 1u << device;
    busy_add(&table->busy[device], &table->header->device[device], start, end, class);
}

/* Count a launch by its number: the numbers between two recorded ones were launches that were not. */
static void add_number(struct table *table, const struct abi_kernel *kernel) {
    struct header *header = table->header;
    uint32_t at = 0;
    while (at < table->contexts_used && (table->contexts[at].context != kernel->context || table->contexts[at].device != kernel->device))
        at++;
    if (at == CONTEXTS) {
        header->without_context++;
        return;
    }
    struct context *context = &table->contexts[at];
    if (at == table->contexts_used) {
        table->contexts_used++;
        *context = (struct context){kernel->device, kernel->context, kernel->grid - 1};
    }
    header->launches++;
    if (kernel->grid > context->newest) {
        header->numbered += (uint64_t)(kernel->grid - context->newest);
        context->newest = kernel->grid;
    }
}

static void add_kernel(struct table *table, const struct abi_kernel *kernel) {
    table->header->kernels++;
    if (kernel->graph == 0)
        add_number(table, kernel);
    else
        table->signs.graph_kernels++;
    if (!timed(table, kernel->start, kernel->end)) {
        table->signs.bad_kernels++;
        return;
    }
    uint32_t at = row_of(table, kernel->name, kernel->device, kernel->graph ? NODE_ROW : KERNEL_ROW);
    uint64_t ns = kernel->end - kernel->start;
    struct row *row = count(table, at, ns, 0);
    if (ns > table->longest_ns)
        table->longest_ns = ns;
    if (kernel->submitted != 0 && kernel->submitted <= kernel->start) {
        row->delays++;
        row->delay_ns += kernel->start - kernel->submitted;
    }
    bool collects = at ? table->collective[at] : kernel->name != NULL && collective(kernel->name);
    enum busy_class class = collects ? BUSY_COLLECTIVE : BUSY_COMPUTE;
    beside(table, kernel->device, kernel->start, kernel->end, class);
}

static void add_copy(struct table *table, const struct abi_copy *copy) {
    table->header->copies++;
    if (!timed(table, copy->start, copy->end))
        return;
    static const char *const directions[] = {
        "copy", "copy HtoD", "copy DtoH", "copy HtoA", "copy AtoH", "copy AtoA", "copy AtoD", "copy DtoA", "copy DtoD", "copy HtoH", "copy PtoP",
    };
    uint32_t known = sizeof directions / sizeof *directions;
    uint32_t direction = copy->copy_kind < known ? copy->copy_kind : 0;
    uint32_t at = row_of(table, directions[direction], copy->device, COPY_ROW);
    count(table, at, copy->end - copy->start, copy->bytes)->detail = (uint8_t)(at ? direction : 0);
    beside(table, copy->device, copy->start, copy->end, BUSY_COPY);
}

static void add_memset(struct table *table, const struct abi_memset *memset) {
    table->header->memsets++;
    if (!timed(table, memset->start, memset->end))
        return;
    count(table, row_of(table, "memset", memset->device, MEMSET_ROW), memset->end - memset->start, memset->bytes);
    beside(table, memset->device, memset->start, memset->end, BUSY_COPY);
}

static void add_graph(struct table *table, const struct abi_graph *graph) {
    table->header->graphs++;
    if (!timed(table, graph->start, graph->end))
        return;
    count(table, row_of(table, "graph", graph->device, GRAPH_ROW), graph->end - graph->start, 0);
    beside(table, graph->device, graph->start, graph->end, BUSY_COMPUTE);
}

static void add_overhead(struct table *table, const struct abi_overhead *overhead) {
    table->header->overheads++;
    if (timed(table, overhead->start, overhead->end))
        table->header->overhead_ns += overhead->end - overhead->start;
}

void table_add(struct table *table, const struct abi_record *record) {
    table->header->records++;
    switch (record->kind) {
    case ABI_CONCURRENT_KERNEL:
        add_kernel(table, (const struct abi_kernel *)record);
        break;
    case ABI_MEMCPY:
    case ABI_MEMCPY_PEER:
        add_copy(table, (const struct abi_copy *)record);
        break;
    case ABI_MEMSET:
        add_memset(table, (const struct abi_memset *)record);
        break;
    case ABI_GRAPH:
        add_graph(table, (const struct abi_graph *)record);
        break;
    case ABI_OVERHEAD:
        add_overhead(table, (const struct abi_overhead *)record);
        break;
    default:
        table->header->unknown_records++;
    }
}

uint64_t table_longest_ns(const struct table *table) { return table->longest_ns; }

void table_age(struct table *table) { table->longest_ns /= 2; }

struct signs table_signs(const struct table *table) { return table->signs; }

uint32_t table_devices(const struct table *table) { return table->devices; }

void table_settle(struct table *table) {
    for (int device = 0; device < DEVICES; device++)
        busy_settle(&table->busy[device], &table->header->device[device]);
}

void table_settle_older(struct table *table) {
    for (int device = 0; device < DEVICES; device++)
        busy_settle_older(&table->busy[device], &table->header->device[device]);
}
