/* The parts that the programs share: errors, hints, and the bytes that a file has to hold. */
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
