/* All ranks write the same strided vector, each with a byte of its own, again and again. After each time, all pieces have
 * to be of one rank.
 *
 *   tear FILE HOW TIMES PIECES BLOCK STRIDE ATOMIC [LINK]
 *
 * HOW is the name of the call, such as write_at; by "halves", each rank writes no more than a half, so that all is torn. ATOMIC is 1
 * or 0. With LINK, every rank opens the file by itself, and odd ranks by that name. Prints "torn T of N" on rank 0; the exit code is
 * 0 whatever T is, and 1 after an error. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    /* What was printed right before an abort, MPICH's launcher may lose. */
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    int rank, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 8) MPI_Abort(MPI_COMM_WORLD, 2);
    const char *path = argv[1], *how = argv[2];
    int times = atoi(argv[3]), pieces = atoi(argv[4]), block = atoi(argv[5]), stride = atoi(argv[6]);
    int bytes = pieces * block;
    char *mine = malloc(bytes), *seen = malloc((size_t)pieces * stride);
    memset(mine, 'a' + rank, bytes);

    MPI_File file;
    MPI_Comm party = argc > 8 ? MPI_COMM_SELF : MPI_COMM_WORLD;
    const char *name = argc > 8 && rank % 2 ? argv[8] : path;
    check(MPI_File_open(party, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    MPI_Datatype vector, view;
    MPI_Type_vector(pieces, block, stride, MPI_BYTE, &vector);
    MPI_Type_create_resized(vector, 0, (MPI_Aint)pieces * stride, &view);
    MPI_Type_commit(&view);
    check(MPI_File_set_view(file, 0, MPI_BYTE, view, "native", MPI_INFO_NULL), "set_view");
    check(MPI_File_set_atomicity(file, atoi(argv[7])), "set_atomicity");
    int flag = -1;
    check(MPI_File_get_atomicity(file, &flag), "get_atomicity");
    if (flag != atoi(argv[7])) {
        fprintf(stderr, "the atomic mode is %d\n", flag);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }

    int torn = 0;
    for (int time = 0; time < times; time++) {
        MPI_Status status;
        MPI_Request request = MPI_REQUEST_NULL;
        int waits = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        if (!strcmp(how, "halves")) {
            int half = rank % 2 ? bytes / 2 : 0;
            check(MPI_File_write_at(file, half, mine + half, bytes / 2, MPI_BYTE, &status), how);
        } else if (!strcmp(how, "write_at")) {
            check(MPI_File_write_at(file, 0, mine, bytes, MPI_BYTE, &status), how);
        } else if (!strcmp(how, "write")) {
            check(MPI_File_seek(file, 0, MPI_SEEK_SET), "seek");
            check(MPI_File_write(file, mine, bytes, MPI_BYTE, &status), how);
            MPI_Offset at;
            MPI_File_get_position(file, &at);
            if (at != bytes) check(MPI_ERR_OTHER, "the individual pointer");
        } else if (!strcmp(how, "write_at_all")) {
            check(MPI_File_write_at_all(file, 0, mine, bytes, MPI_BYTE, &status), how);
        } else if (!strcmp(how, "write_all")) {
            check(MPI_File_seek(file, 0, MPI_SEEK_SET), "seek");
            check(MPI_File_write_all(file, mine, bytes, MPI_BYTE, &status), how);
            MPI_Offset at;
            MPI_File_get_position(file, &at);
            if (at != bytes) check(MPI_ERR_OTHER, "the individual pointer");
        } else if (!strcmp(how, "iwrite_at")) {
            check(MPI_File_iwrite_at(file, 0, mine, bytes, MPI_BYTE, &request), how);
            waits = 1;
        } else if (!strcmp(how, "iwrite")) {
            check(MPI_File_seek(file, 0, MPI_SEEK_SET), "seek");
            check(MPI_File_iwrite(file, mine, bytes, MPI_BYTE, &request), how);
            waits = 1;
        } else if (!strcmp(how, "iwrite_at_all")) {
            check(MPI_File_iwrite_at_all(file, 0, mine, bytes, MPI_BYTE, &request), how);
            waits = 1;
        } else if (!strcmp(how, "iwrite_all")) {
            check(MPI_File_seek(file, 0, MPI_SEEK_SET), "seek");
            check(MPI_File_iwrite_all(file, mine, bytes, MPI_BYTE, &request), how);
            waits = 1;
        } else if (!strcmp(how, "write_at_all_begin")) {
            check(MPI_File_write_at_all_begin(file, 0, mine, bytes, MPI_BYTE), how);
            check(MPI_File_write_at_all_end(file, mine, &status), how);
        } else {
            fprintf(stderr, "no such call: %s\n", how);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        if (waits) check(MPI_Wait(&request, &status), "wait");
        int count = -1;
        MPI_Get_count(&status, MPI_BYTE, &count);
        if (count != bytes && strcmp(how, "halves")) {
            fprintf(stderr, "%s: %d of %d bytes\n", how, count, bytes);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            FILE *plain = fopen(path, "rb");
            size_t got = fread(seen, 1, (size_t)pieces * stride, plain);
            fclose(plain);
            int mixed = got < (size_t)(pieces - 1) * stride + block;
            for (int piece = 0; piece < pieces; piece++)
                for (int byte = 0; byte < block; byte++) mixed |= seen[piece * stride + byte] != seen[0];
            torn += mixed;
        }
    }
    if (rank == 0) printf("torn %d of %d\n", torn, times);
    MPI_Type_free(&vector);
    MPI_Type_free(&view);
    check(MPI_File_close(&file), "close");
    MPI_Finalize();
    free(mine);
    free(seen);
    return 0;
}
