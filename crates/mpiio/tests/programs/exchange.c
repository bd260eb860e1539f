/* All ranks write and read small pieces that lie among each other, by collective calls in atomic mode.
 *
 *   exchange FILE regular|irregular [GAP]
 *
 * Regular pieces have 64 bytes and come in turns, and behind a piece of each rank come GAP bytes of nobody. Irregular ones have random lengths and ranks. Every byte of the file and of what is read is compared, also where the file ends in
 * the middle of what is asked for. Rank 0 prints "wrong N, P pieces, W calls that write, R that read". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The calls of the system by which this process has read or written until now. */
static long calls(const char *name) {
    char line[128];
    long found = -1;
    FILE *about = fopen("/proc/self/io", "r");
    while (about && fgets(line, sizeof line, about))
        if (!strncmp(line, name, strlen(name))) found = atol(line + strlen(name));
    if (about) fclose(about);
    return found;
}

static unsigned char byte_at(long offset, int rank) { return (unsigned char)(offset * 31 + offset / 251 + rank * 17 + 1); }

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int is_regular = !strcmp(argv[2], "regular"), gap = argc > 3 ? atoi(argv[3]) : 0;
    /* Everybody knows whose each byte is: that of a rank, or 255. */
    long pieces = is_regular ? 60000L * size : 3000, end = is_regular ? 60000L * (64 * size + gap) : 3000L * 200;
    unsigned char *owner = malloc((size_t)end);
    memset(owner, 255, (size_t)end);
    int *lengths = malloc(pieces * sizeof *lengths), *places = malloc(pieces * sizeof *places), mine = 0;
    srand(7);
    for (long piece = 0, at = 0; piece < pieces; piece++) {
        int whose = is_regular ? (int)(piece % size) : rand() % size;
        int length = is_regular ? 64 : 1 + rand() % 150;
        int behind = is_regular ? (whose == size - 1 ? gap : 0) : rand() % 50;
        memset(owner + at, whose, (size_t)length);
        if (whose == rank) {
            lengths[mine] = length;
            places[mine++] = (int)at;
        }
        at += length + behind;
    }
    MPI_Datatype type;
    if (is_regular) {
        MPI_Type_vector(60000, 64, 64 * size + gap, MPI_BYTE, &type);
    } else {
        MPI_Type_indexed(mine, lengths, places, MPI_BYTE, &type);
    }
    MPI_Type_commit(&type);
    long shift = is_regular ? 64L * rank : 0, bytes = 0, wrong = 0;
    for (int piece = 0; piece < mine; piece++) bytes += lengths[piece];
    unsigned char *data = malloc((size_t)bytes), *found = malloc((size_t)bytes), *file_bytes = malloc((size_t)end + 1);
    long at = 0, written = 0, read = 0;
    for (int piece = 0; piece < mine; piece++)
        for (int byte = 0; byte < lengths[piece]; byte++) data[at++] = byte_at(places[piece] + byte, rank);

    /* What nobody writes stays as it was. */
    if (rank == 0) {
        FILE *file = fopen(argv[1], "w");
        memset(file_bytes, 0xEE, (size_t)end);
        if (!file || fwrite(file_bytes, 1, (size_t)end, file) != (size_t)end || fclose(file)) MPI_Abort(MPI_COMM_WORLD, 3);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_atomicity(file, 1), "set_atomicity");
    check(MPI_File_set_view(file, shift, MPI_BYTE, type, "native", MPI_INFO_NULL), "set_view");
    MPI_Status status;
    int count;
    written -= calls("syscw:");
    check(MPI_File_write_at_all(file, 0, data, (int)bytes, MPI_BYTE, &status), "write_at_all");
    written += calls("syscw:");
    MPI_Get_count(&status, MPI_BYTE, &count);
    wrong += count != bytes;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *again = fopen(argv[1], "r");
        if (!again || fread(file_bytes, 1, (size_t)end + 1, again) != (size_t)end) wrong++;
        for (long byte = 0; byte < end; byte++)
            wrong += file_bytes[byte] != (owner[byte] == 255 ? 0xEE : byte_at(byte, owner[byte]));
        if (again) fclose(again);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    memset(found, 0, (size_t)bytes);
    read -= calls("syscr:");
    check(MPI_File_read_at_all(file, 0, found, (int)bytes, MPI_BYTE, &status), "read_at_all");
    read += calls("syscr:");
    MPI_Get_count(&status, MPI_BYTE, &count);
    wrong += count != bytes || memcmp(found, data, (size_t)bytes) != 0;

    /* The file ends in the middle, and memory behind that stays as it was. */
    long half = end / 2 + 5;
    check(MPI_File_set_size(file, half), "set_size");
    long before = 0;
    for (int piece = 0; piece < mine; piece++) {
        long piece_end = places[piece] + lengths[piece];
        before += piece_end <= half ? lengths[piece] : places[piece] < half ? half - places[piece] : 0;
    }
    memset(found, 0xAB, (size_t)bytes);
    check(MPI_File_read_at_all(file, 0, found, (int)bytes, MPI_BYTE, &status), "read_at_all");
    MPI_Get_count(&status, MPI_BYTE, &count);
    wrong += count != before || memcmp(found, data, (size_t)before) != 0;
    for (long byte = before; byte < bytes; byte++) wrong += found[byte] != 0xAB;

    long all[4], local[4] = {wrong, mine, written, read};
    MPI_Reduce(local, all, 4, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("wrong %ld, %ld pieces, %ld calls that write, %ld that read\n", all[0], all[1], all[2], all[3]);
    check(MPI_File_close(&file), "close");
    MPI_Type_free(&type);
    MPI_Finalize();
    free(owner), free(lengths), free(places), free(data), free(found), free(file_bytes);
    return 0;
}
