/* S3aSim: a search of sequences by a master and workers. A database is divided into fragments; workers search a query in one fragment after
 * the other, and when all of a query's fragments have been searched, each worker writes the results that it found to the places that the
 * master tells it, in one file, and syncs the file.
 *
 *   s3asim FILE PLAN ATOMIC SEED [HINT=VALUE…]
 *   s3asim --library
 *
 * PLAN is a file of words of 64 bits: the number of queries, that of fragments, and that of results; for each result, in the order of the
 * file that is written, its query, its fragment, its offset and its length; and for each query and each of its fragments the nanoseconds
 * that the search takes, which a worker sleeps. The file's words are those of its seed. Rank 0 prints the times as JSON. */
#include "job.h"

enum { TAG = 1, HEADER = 4 };
/* The kinds of the master's messages. */
enum { SEARCH, WRITE, END };

struct plan {
    uint64_t queries, fragments, results;
    /* Query, fragment, offset and length of each result. */
    const uint64_t (*result)[4];
    const uint64_t *search_ns;
    uint64_t *words;
};

static struct plan read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, "cannot be opened");
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    struct plan plan;
    plan.words = allocate(bytes);
    if (bytes < 24 || fread(plan.words, 1, bytes, file) != (size_t)bytes) fail(path, "cannot be read");
    fclose(file);
    plan.queries = plan.words[0];
    plan.fragments = plan.words[1];
    plan.results = plan.words[2];
    plan.result = (const uint64_t(*)[4])(plan.words + 3);
    plan.search_ns = plan.words + 3 + 4 * plan.results;
    if ((uint64_t)bytes != 8 * (3 + 4 * plan.results + plan.queries * plan.fragments)) fail(path, "is not a plan");
    return plan;
}

static void receive(uint64_t *words, size_t words_max, int source, MPI_Status *status) {
    MPI_Request request;
    check(MPI_Irecv(words, (int)words_max, MPI_UINT64_T, source, TAG, MPI_COMM_WORLD, &request), "MPI_Irecv");
    await(&request, status);
}

static void transmit(const uint64_t *words, size_t count, int destination) {
    MPI_Request request;
    check(MPI_Isend(words, (int)count, MPI_UINT64_T, destination, TAG, MPI_COMM_WORLD, &request), "MPI_Isend");
    await(&request, MPI_STATUS_IGNORE);
}

/* Hands out searches in the order of queries, and when a query has been searched, the places of its results. */
static void master(const struct plan *plan, int workers) {
    uint64_t tasks = plan->queries * plan->fragments, next = 0, searched = 0, *left = allocate(8 * plan->queries);
    uint64_t message_max = HEADER + 2 * plan->results, *message = allocate(8 * message_max);
    int *owner = allocate(sizeof *owner * tasks), *is_idle = calloc(workers + 1, sizeof *is_idle), ended = 0;
    /* For each worker the number of queries whose results it was told to write: all write in the same order, as the sync is collective. */
    uint64_t *written = calloc(workers + 1, sizeof *written);
    if (!is_idle || !written) fail("calloc", "no memory");
    for (uint64_t query = 0; query < plan->queries; query++) left[query] = plan->fragments;
    while (ended < workers) {
        MPI_Status status;
        receive(message, message_max, MPI_ANY_SOURCE, &status);
        int worker = status.MPI_SOURCE;
        is_idle[worker] = 1;
        /* The first message of a worker is about no search. */
        if (message[0]) {
            uint64_t query = message[1], fragment = message[2];
            owner[query * plan->fragments + fragment] = worker;
            left[query]--;
        }
        while (searched < plan->queries && left[searched] == 0) searched++;
        for (worker = 1; worker <= workers; worker++) {
            if (!is_idle[worker]) continue;
            uint64_t count = HEADER;
            message[3] = 0;
            if (written[worker] < searched) {
                uint64_t query = written[worker]++;
                message[0] = WRITE;
                message[1] = query;
                for (uint64_t index = 0; index < plan->results; index++) {
                    const uint64_t *result = plan->result[index];
                    if (result[0] != query || owner[query * plan->fragments + result[1]] != worker) continue;
                    message[count++] = result[2];
                    message[count++] = result[3];
                    message[3]++;
                }
            } else if (next < tasks) {
                message[0] = SEARCH;
                message[1] = next / plan->fragments;
                message[2] = next % plan->fragments;
                next++;
            } else if (written[worker] == plan->queries) {
                message[0] = END;
                ended++;
            } else {
                continue;
            }
            is_idle[worker] = 0;
            transmit(message, count, worker);
        }
    }
    free(left);
    free(message);
    free(owner);
    free(is_idle);
    free(written);
}

/* What a worker did. */
struct work {
    long long bytes;
    double viewing, writing, syncing;
};

/* Writes results, given as offsets and lengths in ascending order, when all workers are about to do so. */
static void write_results(MPI_File file, MPI_Comm workers, const uint64_t *results, uint64_t count, uint64_t seed, struct work *work) {
    int *lengths = allocate(sizeof *lengths * count);
    MPI_Aint *offsets = allocate(sizeof *offsets * count);
    uint64_t bytes = 0;
    for (uint64_t index = 0; index < count; index++) {
        offsets[index] = (MPI_Aint)results[2 * index];
        lengths[index] = (int)results[2 * index + 1];
        bytes += results[2 * index + 1];
    }
    unsigned char *data = allocate(bytes), *end = data;
    for (uint64_t index = 0; index < count; index++)
        for (uint64_t at = results[2 * index]; at < results[2 * index] + results[2 * index + 1]; at++)
            *end++ = (unsigned char)(word(seed, at / 8) >> 8 * (at % 8));

    double begun = MPI_Wtime();
    meet(workers);
    /* Without results there is no file type, but the calls are collective. */
    MPI_Datatype type = MPI_BYTE;
    if (count > 0) {
        MPI_Type_create_hindexed((int)count, lengths, offsets, MPI_BYTE, &type);
        MPI_Type_commit(&type);
    }
    check(MPI_File_set_view(file, 0, MPI_BYTE, type, "native", MPI_INFO_NULL), "MPI_File_set_view");
    double viewed = MPI_Wtime();
    MPI_Status status;
    int written = 0;
    check(MPI_File_write(file, data, (int)bytes, MPI_BYTE, &status), "MPI_File_write");
    double ended = MPI_Wtime();
    check(MPI_File_sync(file), "MPI_File_sync");
    work->syncing += MPI_Wtime() - ended;
    work->writing += ended - viewed;
    work->viewing += viewed - begun;
    if (bytes > 0) MPI_Get_count(&status, MPI_BYTE, &written);
    if (written != (int)bytes) fail("MPI_File_write", "not all bytes were written");
    work->bytes += written;
    if (count > 0) MPI_Type_free(&type);
    free(data);
    free(lengths);
    free(offsets);
}

static struct work worker(const struct plan *plan, MPI_File file, MPI_Comm workers, uint64_t seed) {
    struct work work = {0};
    uint64_t message_max = HEADER + 2 * plan->results, *message = allocate(8 * message_max), count = HEADER;
    memset(message, 0, 8 * HEADER);
    for (;;) {
        MPI_Status status;
        transmit(message, count, 0);
        receive(message, message_max, 0, &status);
        count = HEADER;
        if (message[0] == END) break;
        if (message[0] == WRITE) {
            write_results(file, workers, message + HEADER, message[3], seed, &work);
            message[0] = 0;
            continue;
        }
        uint64_t query = message[1], fragment = message[2];
        pause_for(plan->search_ns[query * plan->fragments + fragment]);
        /* The master is told the lengths of what was found. */
        message[0] = 1;
        for (uint64_t index = 0; index < plan->results; index++) {
            const uint64_t *result = plan->result[index];
            if (result[0] == query && result[1] == fragment) message[count++] = result[3];
        }
    }
    free(message);
    return work;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--library")) return print_library();
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 5) fail(argv[0], "too few arguments");
    if (size < 2) fail(argv[0], "there is no worker");
    uint64_t seed = strtoull(argv[4], NULL, 10);
    struct plan plan = read_plan(argv[2]);
    MPI_Info info = hints(argc - 5, argv + 5);
    MPI_Comm workers;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &workers);
    MPI_File file = MPI_FILE_NULL;
    if (rank > 0) file = open_file(workers, argv[1], info, atoi(argv[3]));
    meet(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    struct work work = {0};
    if (rank == 0)
        master(&plan, size - 1);
    else
        work = worker(&plan, file, workers, seed);
    double took = MPI_Wtime() - begun;
    meet(MPI_COMM_WORLD);
    took = greatest(took, MPI_COMM_WORLD);
    if (rank > 0) check(MPI_File_close(&file), "MPI_File_close");

    long long bytes = 0;
    double io = work.writing + work.syncing, all = 0;
    MPI_Reduce(&work.bytes, &bytes, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&io, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    double most = greatest(io, MPI_COMM_WORLD);
    double writing = greatest(work.writing, MPI_COMM_WORLD), syncing = greatest(work.syncing, MPI_COMM_WORLD);
    double viewing = greatest(work.viewing, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"ranks\": %d, \"bytes\": %lld, \"total_s\": %.9f, \"io_s\": %.9f, \"io_mean_s\": %.9f, \"write_s\": %.9f, "
               "\"sync_s\": %.9f, \"view_s\": %.9f}\n",
               size, bytes, took, most, all / (size - 1), writing, syncing, viewing);
    MPI_Comm_free(&workers);
    MPI_Info_free(&info);
    free(plan.words);
    MPI_Finalize();
    return 0;
}
