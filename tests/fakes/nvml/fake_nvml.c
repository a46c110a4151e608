/* A libnvidia-ml.so.1 with the true C ABI, for machines without a GPU.
 *
 * The file named by FAKE_NVML says what happens, read anew at each call; the last line that fits
 * wins:
 *   gpus 8
 *   lost 1                               GPUs that are not listed any more, of the first on
 *   <gpu|*> <function|*> value N...      e.g.  0 nvmlDeviceGetPowerUsage value 300000
 *   <gpu|*> <function|*> error CODE      e.g.  2 * error 15
 *   <gpu|*> <function|*> hang
 * A function that is asked by an argument also goes by NAME.ARGUMENT. MIG instance i of GPU g is
 * device 100 * (g + 1) + i. Without a line, a healthy H100 answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef unsigned long long u64;
typedef struct device { unsigned number; } *nvmlDevice_t;
enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };
#define MOST 1024

static struct device devices[MOST];
static unsigned events_given;

static unsigned said(const char *form, unsigned count)
{
	char line[512];
	FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/dev/null", "r");
	while (file && fgets(line, sizeof line, file))
		sscanf(line, form, &count);
	if (file)
		fclose(file);
	return count;
}
static unsigned lost(void) { return said("lost %u", 0); }
static unsigned gpus(void) { return said("gpus %u", 8) - lost(); }

/* Fill out[0..n) for a call; values that the file does not give stay as they are. */
static nvmlReturn_t ask(unsigned gpu, const char *name, u64 *out, int n)
{
	char line[512], who[32], what[128], verb[16];
	nvmlReturn_t result = SUCCESS;
	int hang = 0;
	FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/dev/null", "r");
	while (file && fgets(line, sizeof line, file)) {
		int used = 0, step, i;
		if (sscanf(line, "%31s %127s %15s%n", who, what, verb, &used) != 3)
			continue;
		if (strcmp(who, "*") && (unsigned)atoi(who) != gpu)
			continue;
		if (strcmp(what, "*") && strcmp(what, name))
			continue;
		hang = !strcmp(verb, "hang");
		result = SUCCESS;
		if (!strcmp(verb, "error"))
			result = atoi(line + used);
		if (!strcmp(verb, "value"))
			for (i = 0; i < n && sscanf(line + used, "%llu%n", &out[i], &step) == 1; i++)
				used += step;
	}
	if (file)
		fclose(file);
	while (hang)
		pause();
	return result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) { u64 v = flags; return ask(MOST, __func__, &v, 1); }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code)
{
	return code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : "an error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length)
{
	snprintf(text, length, "550.54.15");
	return SUCCESS;
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
	snprintf(text, length, "12.550.54.15");
	return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { *count = gpus(); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	u64 none = 0;
	if (index >= gpus() || index >= 100)
		return INVALID;
	index += lost();
	devices[index].number = index;
	*device = &devices[index];
	return ask(index, __func__, &none, 0);
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length)
{
	u64 none = 0;
	const char *kind = device->number >= 100 ? "MIG" : "GPU";
	snprintf(text, length, "%s-00000000-0000-0000-0000-%012u", kind, device->number);
	return ask(device->number, __func__, &none, 0);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length)
{
	u64 none = 0;
	snprintf(text, length, "NVIDIA H100 80GB HBM3");
	return ask(device->number, __func__, &none, 0);
}

#define ONE(function, type, fallback)                                                              \
	nvmlReturn_t function(nvmlDevice_t device, type *value)                                    \
	{                                                                                          \
		u64 v = fallback;                                                                  \
		nvmlReturn_t result = ask(device->number, __func__, &v, 1);                        \
		if (result == SUCCESS)                                                             \
			*value = v;                                                                \
		return result;                                                                     \
	}
#define BY(function, type, fallback)                                                               \
	nvmlReturn_t function(nvmlDevice_t device, unsigned which, type *value)                    \
	{                                                                                          \
		char name[128];                                                                    \
		u64 v = fallback;                                                                  \
		nvmlReturn_t result = ask(device->number, __func__, &v, 1);                        \
		snprintf(name, sizeof name, "%s.%u", __func__, which);                             \
		if (result == SUCCESS)                                                             \
			result = ask(device->number, name, &v, 1);                                 \
		if (result == SUCCESS)                                                             \
			*value = v;                                                                \
		return result;                                                                     \
	}

ONE(nvmlDeviceGetPowerUsage, unsigned, 300000)
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000)
ONE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
ONE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
ONE(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, u64, 0)
ONE(nvmlDeviceGetMaxMigDeviceCount, unsigned, 7)
BY(nvmlDeviceGetClockInfo, unsigned, which == 2 ? 2619 : 1980)
BY(nvmlDeviceGetMaxClockInfo, unsigned, which == 2 ? 2619 : 1980)
BY(nvmlDeviceGetTemperature, unsigned, 41)
BY(nvmlDeviceGetPcieThroughput, unsigned, which ? 2000 : 1000)

/* An SXM board has no fan of its own. */
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *value)
{
	u64 v = ~0ULL;
	nvmlReturn_t result = ask(device->number, __func__, &v, 1);
	*value = v;
	return result == SUCCESS && v == ~0ULL ? UNSUPPORTED : result;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
	char name[64];
	u64 v = 1;
	nvmlReturn_t result = ask(device->number, __func__, &v, 1);
	snprintf(name, sizeof name, "%s.%u", __func__, link);
	if (link >= 18)
		return INVALID;
	if (result == SUCCESS)
		result = ask(device->number, name, &v, 1);
	*active = v;
	return result;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
					     u64 *value)
{
	char name[64];
	*value = 0;
	snprintf(name, sizeof name, "%s.%u.%u", __func__, link, counter);
	return ask(device->number, name, value, 1);
}

/* A field goes by its number: nvmlDeviceGetFieldValues.138; the scope of a link's counter is the
 * link, or all bits set for all of them. */
union value { double d; unsigned u; u64 ull; };
struct field_value {
	unsigned id, scope;
	long long timestamp, latency;
	unsigned type;
	nvmlReturn_t result;
	union value value;
};
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values)
{
	char name[64];
	u64 none = 0;
	nvmlReturn_t result = ask(device->number, __func__, &none, 0);
	int i;
	for (i = 0; result == SUCCESS && i < count; i++) {
		u64 v = 0;
		snprintf(name, sizeof name, "%s.%u", __func__, values[i].id);
		values[i].result = ask(device->number, name, &v, 1);
		if (values[i].scope != ~0U || values[i].id < 138 || values[i].id > 139)
			values[i].result = INVALID;
		values[i].type = 3;
		values[i].value.ull = v;
	}
	return result;
}

struct utilization { unsigned gpu, memory; };
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *rates)
{
	u64 v[2] = { 0, 0 };
	u64 mig[2] = { 0, 0 };
	nvmlReturn_t result = ask(device->number, __func__, v, 2);
	ask(device->number, "nvmlDeviceGetMigMode", mig, 2);
	if (result == SUCCESS && mig[0]) /* as the true one does */
		return UNSUPPORTED;
	rates->gpu = v[0];
	rates->memory = v[1];
	return result;
}
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory)
{
	u64 v[2] = { 8ULL << 30, 80ULL << 30 };
	nvmlReturn_t result = ask(device->number, __func__, v, 2);
	if (memory->version != (sizeof *memory | 2U << 24))
		return 25;
	memory->used = v[0];
	memory->total = v[1];
	memory->reserved = 0;
	memory->free = v[1] - v[0];
	return result;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
					 u64 *value)
{
	char name[64];
	nvmlReturn_t result = ask(device->number, __func__, value, 0);
	*value = 0;
	snprintf(name, sizeof name, "%s.%u.%u", __func__, type, counter);
	return result == SUCCESS ? ask(device->number, name, value, 1) : result;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
				       unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	u64 v[4] = { 0, 0, 0, 0 };
	nvmlReturn_t result = ask(device->number, __func__, v, 4);
	*corrected = v[0];
	*uncorrected = v[1];
	*pending = v[2];
	*failed = v[3];
	return result;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	u64 v[2] = { 0, 0 };
	nvmlReturn_t result = ask(device->number, __func__, v, 2);
	*current = v[0];
	*pending = v[1];
	return result;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
						 nvmlDevice_t *part)
{
	u64 v[1] = { 2 };
	nvmlReturn_t result = ask(device->number, "mig_instances", v, 1);
	unsigned number = 100 * (device->number + 1) + index;
	if (result == SUCCESS && (index >= v[0] || number >= MOST))
		return NOT_FOUND;
	devices[number].number = number;
	*part = &devices[number];
	return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t part, unsigned *instance)
{
	u64 none = 0;
	*instance = part->number % 100;
	return ask(part->number, __func__, &none, 0);
}

/* GPM: a sample is of a GPU or its instance; `<device> gpm.METRIC value N`: 2 is the SMs' percent, 40
 * without; 20 and 21 are PCIe MiB/s, 3 and 5 without. The samples that are held are written to the
 * file that FAKE_NVML_GPM names. */
struct gpm_support { unsigned version, supported; };
struct gpm_sample { unsigned number; };
struct gpm_metric { unsigned id; nvmlReturn_t result; double value; const char *info[3]; };
struct gpm_get {
	unsigned version, count;
	struct gpm_sample *first, *second;
	struct gpm_metric metrics[477];
};
static int samples_held;
static void hold(int change)
{
	FILE *file = getenv("FAKE_NVML_GPM") ? fopen(getenv("FAKE_NVML_GPM"), "w") : NULL;
	samples_held += change;
	if (!file)
		return;
	fprintf(file, "%d", samples_held);
	fclose(file);
}
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct gpm_support *support)
{
	u64 v = 1;
	nvmlReturn_t result = ask(device->number, __func__, &v, 1);
	support->supported = v;
	return result;
}
nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
	hold(1);
	*sample = calloc(1, sizeof **sample);
	return SUCCESS;
}
nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample)
{
	hold(-1);
	free(sample);
	return SUCCESS;
}
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, struct gpm_sample *sample)
{
	u64 none = 0;
	sample->number = 100 * (device->number + 1) + instance;
	return ask(sample->number, __func__, &none, 0);
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample)
{
	u64 none = 0;
	sample->number = device->number;
	return ask(sample->number, __func__, &none, 0);
}
nvmlReturn_t nvmlGpmMetricsGet(struct gpm_get *get)
{
	char name[64];
	unsigned id = get->metrics[0].id;
	u64 v = id == 2 ? 40 : id == 20 ? 3 : 5;
	if (get->version != 1 || get->first->number != get->second->number || get->first == get->second)
		return INVALID;
	snprintf(name, sizeof name, "gpm.%u", id);
	get->metrics[0].result = ask(get->first->number, name, &v, 1);
	get->metrics[0].value = v;
	return id == 2 || id == 20 || id == 21 ? SUCCESS : INVALID;
}

/* NAME.SLOT: one of several beside what NAME itself gives. */
#define SLOTS 8
static nvmlReturn_t slot(unsigned gpu, const char *function, unsigned place, u64 *out, int n)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%u", function, place);
	return ask(gpu, name, out, n);
}

struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
						     struct process *processes)
{
	u64 v[3] = { 0, 0, 0 }; /* pid, bytes, how many with this pid and above */
	nvmlReturn_t result = ask(device->number, __func__, v, 3);
	unsigned room = *count, i, there = v[0] ? (v[2] ? v[2] : 1) : 0;
	if (result != SUCCESS)
		return result;
	for (i = 0; i < SLOTS; i++) {
		u64 one[2] = { 0, 0 };
		slot(device->number, __func__, i, one, 2);
		if (!one[0])
			continue;
		if (there < room)
			processes[there] = (struct process){ one[0], one[1], -1, -1 };
		there++;
	}
	*count = there;
	if (there > room)
		return TOO_SMALL;
	for (i = 0; v[0] && i < (v[2] ? v[2] : 1); i++)
		processes[i] = (struct process){ v[0] + i, v[1], -1, -1 };
	return SUCCESS;
}
struct sample { unsigned pid; u64 time; unsigned sm, memory, encoder, decoder; };
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct sample *samples,
					     unsigned *count, u64 since)
{
	u64 v[SLOTS + 1][2] = { { 0 } };
	unsigned there = 0, given = 0, i;
	nvmlReturn_t result = ask(device->number, __func__, v[0], 2);
	if (result != SUCCESS)
		return result;
	for (i = 0; i < SLOTS; i++)
		slot(device->number, __func__, i, v[i + 1], 2);
	for (i = 0; i <= SLOTS; i++)
		there += v[i][0] != 0;
	if (!there)
		return NOT_FOUND;
	if (!samples || *count < there) {
		*count = there;
		return TOO_SMALL;
	}
	*count = there;
	for (i = 0; i <= SLOTS; i++)
		if (v[i][0])
			samples[given++] = (struct sample){ v[i][0], since + 1, v[i][1], 0, 0, 0 };
	return SUCCESS;
}

struct event { nvmlDevice_t device; u64 type, detail; unsigned gpu_instance, compute_instance; };
nvmlReturn_t nvmlEventSetCreate(void **set) { *set = &events_given; return SUCCESS; }
nvmlReturn_t nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, u64 types, void *set)
{
	u64 none = types;
	(void)set;
	return ask(device->number, __func__, &none, 0);
}
/* `* xid value GPU CODE NUMBER`: NUMBER events in all, each given once; `xid.SLOT`: more of them. */
static nvmlReturn_t next_event(u64 *v, unsigned *given, struct event *event)
{
	if (*given >= v[2])
		return TIMEOUT;
	++*given;
	devices[v[0]].number = v[0];
	*event = (struct event){ &devices[v[0]], 8, v[1], -1, -1 };
	return SUCCESS;
}
nvmlReturn_t nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
	static unsigned slots_given[SLOTS];
	unsigned i;
	u64 v[3] = { 0, 0, 0 };
	nvmlReturn_t result = ask(MOST, "xid", v, 3);
	(void)set;
	(void)timeout_ms;
	if (result != SUCCESS)
		return result;
	result = next_event(v, &events_given, event);
	for (i = 0; result == TIMEOUT && i < SLOTS; i++) {
		u64 more[3] = { 0, 0, 0 };
		slot(MOST, "xid", i, more, 3);
		result = next_event(more, &slots_given[i], event);
	}
	return result;
}
