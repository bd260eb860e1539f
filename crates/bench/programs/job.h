/* The parts that the programs share: errors, hints, waiting for other processes, and the bytes that a file has to hold. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Ends the job with a sentence. */
static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    /* What was printed right before an abort, MPICH's launcher may lose. */
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Ends the job if a call has failed. */
static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fail(what, text);
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (!memory) fail("malloc", "no memory");
    return memory;
}

/* Prints the name of the MPI library, which may be asked for outside of a job. */
static int print_library(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, "\n,")] = 0;
    for (char *tab = text; (tab = strchr(tab, '\t'));) *tab = ' ';
    puts(text);
    return 0;
}

/* Returns arguments such as romio_ds_write=disable as hints. */
static MPI_Info hints(int count, char **pairs) {
    MPI_Info info;
    MPI_Info_create(&info);
    for (int index = 0; index < count; index++) {
        char *value = strchr(pairs[index], '=');
        if (!value) fail(pairs[index], "is not HINT=VALUE");
        *value = 0;
        MPI_Info_set(info, pairs[index], value + 1);
    }
    return info;
}

/* The pause between two looks for what other processes do. */
enum { PAUSE_NS = 50000 };

static void pause_for(uint64_t ns) {
    struct timespec rest = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    while (nanosleep(&rest, &rest)) {
    }
}

/* Waits for a request. MPI libraries spin while they wait, which would take the processors from the ranks that write. From 12 ranks on
 * the pauses become longer while nothing comes, so that all who wait together look no more often than those of a small job. */
static void await(MPI_Request *request, MPI_Status *status) {
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t pause = PAUSE_NS, pause_max = PAUSE_NS * (1 + (uint64_t)ranks * ranks / 128);
    for (int is_done = 0;;) {
        check(MPI_Test(request, &is_done, status), "MPI_Test");
        if (is_done) return;
        pause_for(pause);
        pause = 2 * pause < pause_max ? 2 * pause : pause_max;
    }
}

/* Waits until all processes of a communicator are here. What is collective behind it finds all of them, and need not spin for long. */
static void meet(MPI_Comm communicator) {
    MPI_Request request;
    check(MPI_Ibarrier(communicator, &request), "MPI_Ibarrier");
    await(&request, MPI_STATUS_IGNORE);
}

/* Opens a file for all processes of a communicator, in atomic mode or not. */
static MPI_File open_file(MPI_Comm communicator, const char *path, MPI_Info info, int atomic) {
    MPI_File file;
    check(MPI_File_open(communicator, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file), "MPI_File_open");
    if (atomic) check(MPI_File_set_atomicity(file, 1), "MPI_File_set_atomicity");
    return file;
}

/* Returns the word of 64 bits with this number that the file has to hold: splitmix64. */
static uint64_t word(uint64_t seed, uint64_t number) {
    uint64_t bits = seed + (number + 1) * 0x9E3779B97F4A7C15u;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

/* Returns the greatest of all processes' values on rank 0 of a communicator. */
static double greatest(double mine, MPI_Comm communicator) {
    double most = 0;
    MPI_Reduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, 0, communicator);
    return most;
}
